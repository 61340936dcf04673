"""What came out, in sentences whose numbers are those of kept tables.

A finding states its condition in code: where a reference does not support the sentence, or lacks a number, the finding
is left out with the reason. `FINDINGS` has them by the strength of what they rest on: mathematics, then claims with
intervals, then single comparisons.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final, cast

from workflow.bench.analysis.captions import INERT, inert_labels
from workflow.bench.analysis.ladder import NAMES, Decision, in_general, on_workload
from workflow.bench.analysis.styles import style_of, workload_name
from workflow.bench.analysis.wording import in_words, number
from workflow.bench.claims.costs import PERIODS
from workflow.bench.site.kept import Kept, Measured, Row, UnsupportedError, need

_INTERVAL: Final = re.compile(r"\[([-+.\de]+), ([-+.\de]+)\]\Z")
"""The interval of two numbers that a table's cell ends with."""
_SAID: Final = {"holds": "holds", "fails": "fails", "open": "is open", "not tested": "is not tested"}
"""What a prediction does, by the decision of its runs."""


def _ms(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else number(value, 2)


def _printed_rule(kept: Kept) -> str:
    verdicts = [kept.claim(claim)["verdict"] for claim in ("C20", "C21", "C22")]
    need(verdicts == ["confirmed", "refuted", "refuted"], f"C20, C21 and C22 are {', '.join(verdicts)}")
    row = kept.claim("C22")
    stays = re.findall(r"(\d+) of (\d+) sequences stay finite", f"{row['measured']} {row['details']}")
    need(len(stays) == 3, "C22 does not count the sequences of three rules")
    (printed, number_of), *others = stays
    need({found for found, _ in others} == {number_of}, "another rule does not stay finite")
    return (
        "Algorithm 1's rule keeps the factors positive definite (C20), but it adds where the inverse subtracts, and "
        f"multiplies by γ where it divides (C21). In half precision {printed} of {number_of} sequences of 10,000 "
        "printed updates stay finite; with the exact and the released rule all do (C22)."
    )


def _fewer_iterations(kept: Kept) -> str:
    steps, time = (kept.parts.get(claim, {}) for claim in ("C03", "C01"))
    need(steps and all(one.value < 1 for one in steps.values()), "C03 is not below 1 in all parts")
    need(any(one.high < 1 for one in steps.values()), "C03 has 1 in the interval of every part")
    need(time, "C01 has no interval")
    need(not any(one.low > 1 for one in time.values()), "C01 is above 1 in a part")
    need(any(one.high < 1 for one in time.values()), "C01 has 1 in the interval of every part")
    return (
        f"To LAMB's final quality MKOR takes {_parts(steps)} of LAMB's iterations (C03; the paper: 0.65). LAMB takes "
        f"{_parts(time)} of MKOR-H's time (C01; the paper: 2.57).{_break_even(kept, list(time))}"
    )


def _break_even(kept: Kept, parts: Sequence[str]) -> str:
    """Return a sentence on what MKOR-H's step may cost, which carries over to other machines; empty if C01 lacks it."""
    limits = re.findall(r"in multiples of lamb's, < ([\d.]+ \[[\d., ]+\]), here ([\d.]+)", kept.claim("C01")["details"])
    if len(limits) != len(parts):
        return ""
    phrases = in_words(f"{limit} ({part}, here {here})" for part, (limit, here) in zip(parts, limits, strict=True))
    return f" On any machine MKOR-H saves time if its step costs less, in multiples of LAMB's, than {phrases}."


def _parts(parts: Mapping[str, Measured]) -> str:
    return in_words(f"{one} ({name})" if name else str(one) for name, one in parts.items())


def _newer(kept: Kept) -> str:
    experiments = ("field_language_model", "field_alexnet")
    muon, mkor = ([kept.in_field(name, label) for name in experiments] for label in ("muon", "mkor"))
    need(
        all(one.high < 1 and one.value < other.value for one, other in zip(muon, mkor, strict=True)), "MKOR needs fewer"
    )
    need(muon[0].high < mkor[0].low, "the intervals on the language model meet")
    meet = ", where the two intervals meet" if muon[1].high >= mkor[1].low else ""
    studies = len({row["study"] for row in kept.rows("field_alexnet.runs", "field")} - {""})
    which = "one study, which makes them too short" if studies == 1 else f"{studies} studies"
    # As docs/field.md shows ratios.
    (muon_text, muon_images), (mkor_text, mkor_images) = (
        [f"{one.value:.2f} [{one.low:.2f}, {one.high:.2f}]" for one in of] for of in (muon, mkor)
    )
    return (
        f"With as many trials Muon takes {muon_text} of AdamW's iterations on a small language model, MKOR "
        f"{mkor_text}; on AlexNet {muon_images} and {mkor_images} of SGD's{meet} ([the field](docs/field.md); "
        f"intervals are of {which})."
    )


def _cheap_updates(kept: Kept) -> str:
    factor = {label: [kept.cost(label, "factor", d) for d in (256, 4096)] for label in ("mkor", "kaisa")}
    applied = {label: kept.cost(label, "precondition", 4096) for label in ("mkor", "kaisa", "mkor_windowed")}
    need(factor["mkor"][1] < factor["kaisa"][1] / 10, "MKOR's factor update is not ten times cheaper")
    need(applied["mkor"] > 10 * factor["mkor"][1], "its preconditioning is not ten times dearer than its update")
    need(kept.claim("C12")["verdict"] == "confirmed", "C12 is not confirmed")
    memory, *others = kept.of_claim("C13")
    need(memory.low > 1 and not others, "C13 is not one number above 1")
    mkor, kaisa = (" to ".join(map(_ms, factor[label])) for label in ("mkor", "kaisa"))
    window = kept.cost("mkor_windowed", "factor", 4096)
    return (
        f"From d = 256 to 4096 a factor update takes MKOR {mkor} ms (in one step of {PERIODS['mkor']}) and KAISA "
        f"{kaisa} (in one of {PERIODS['kaisa']}); MKOR sends as little as claimed (C12), and KAISA keeps "
        f"{number(memory.value)} times as much state (C13). But every step multiplies a gradient by two dense factors: "
        f"{_ms(applied['mkor'])} ms at 4096 (KAISA {_ms(applied['kaisa'])}), which the paper's Table 1 leaves out. "
        "`mkor_windowed` (ours), which keeps vectors and no matrix, takes "
        f"{_ms(window)} ms for the update and {_ms(applied['mkor_windowed'])} ms for preconditioning."
    )


def _rank_one(kept: Kept) -> str:
    models = {"autoencoder": "autoencoder", "bert": "BERT", "resnet": "ResNet"}
    errors, shares = (
        [kept.of_claim(claim, *(f"{model} {side}" for model in models)) for side in ("activations", "gradients")]
        for claim in ("C14", "C15")
    )
    need(all(one.value > other.value for one, other in zip(*shares, strict=True)), "their means capture as much")
    changes = [
        float(row["direction_change"])
        for row in kept.rows("probes/factors")
        if (row["side"], row["vectors"]) == ("left", "mkor") and row["direction_change"]
    ]
    need(changes and max(changes) < 1 - INERT, "MKOR's left factor turns a gradient")
    (missed, more), (captured, less) = (
        [", ".join(number(one.value) for one in side) for side in of_claim] for of_claim in (errors, shares)
    )
    return (
        f"On the {in_words(models.values())} the mean vector captures {captured} of the best rank-1 matrix's energy "
        f"for activations, and {less} for gradients (C15). That matrix's relative error, the median over steps and "
        f"seeds, is in the worst layer {missed} for activations, and {more} for gradients (C14). Mean gradients are so "
        f"small that J_L, the factor made of them, turns no layer's gradient by more than 1 − cos = {max(changes):.1e} "
        "(`fig18_factors`)."
    )


def _alexnet(kept: Kept) -> str:
    rivals = kept.of_claim("C19", "sgd/mkor", "hylo/mkor", "kaisa/mkor")
    need(all(one.low > 1 for one in rivals), "C19 is not above 1 for every rival")
    sgd, hylo, kaisa = rivals
    return f"SGD takes {sgd} times MKOR's time to equal training accuracy, HyLo {hylo}, KAISA {kaisa} (C19)."


def _scores(kept: Kept) -> str:
    claims = ("C04", "C05", "C25")
    decided = [claim for claim in claims if kept.claim(claim)["verdict"] in ("confirmed", "refuted")]
    need(not decided, f"{', '.join(decided)} is decided")
    mkor, kaisa, hybrid = (kept.of_claim(claim)[0] for claim in claims)
    studies = {row["study"] for row in kept.rows("bert_glue.runs")} - {""}
    need(len(studies) > 1, "pre-training has one tuning study")
    return (
        f"BERT's average score after fine-tuning, by the optimizer of pre-training, is for MKOR minus LAMB {mkor} "
        f"(C04; the paper: 0.0191), for KAISA minus LAMB {kaisa} (C05; -0.0063), for MKOR-H minus MKOR {hybrid} "
        f"(C25; 0.0032). Each pre-training has {len(studies)} tuning studies."
    )


def _learning_rate(kept: Kept) -> str:
    kaisa, sgd = kept.of_claim("C18", "KAISA without clip", "SGD")
    need(kaisa.high < 0, "C18 is not below 0 for KAISA without its clip")
    at_published = re.search(r"alone, the paper's rates: (.+?)\. Rates that reach", kept.claim("C18")["details"])
    published = f" At the paper's four rates alone it is for {at_published[1]}." if at_published else ""
    return (
        "MKOR's best accuracy, averaged over the rates, minus that of KAISA without the clip (its `kl_clip`, which "
        f"shortens steps) is {kaisa}; minus SGD's {sgd} (C18).{published} These intervals are over seeds."
    )


def _both_sides(kept: Kept) -> str:
    rows = kept.times("autoencoder_lamb", "mkor_normalized", "mkor", "kaisa", "lamb")
    both, mkor, kaisa, lamb = took = [row["iterations"] for row in rows]
    need(all(re.match(r"\d", one) for one in took), "not every method reaches the target")
    need(float(both) < min(map(float, (mkor, kaisa, lamb))), "it does not need the fewest")
    return (
        f"`mkor_normalized`, which gives the mean gradient a tuned norm before it updates J_L (ours), reaches the "
        f"target that `autoencoder_lamb` declares in {both} iterations, MKOR in {mkor}, KAISA in {kaisa}, LAMB in "
        f"{lamb} (medians over the seeds of all studies). C03 has another target, LAMB's final quality."
    )


def _kfac_ends(kept: Kept) -> str:
    experiment, labels = "field_autoencoder", ("kaisa", "kaisa_again", "mkor", "sgd")
    kaisa, again, mkor, sgd = (kept.in_field(experiment, label, "end") for label in labels)
    need(kaisa.high < mkor.low, "KAISA does not end below MKOR")
    need(again.value < mkor.value, "a second search of KAISA ends above MKOR")
    return (
        f"In `{experiment}` the validation loss ends at {kaisa} with KAISA (in a second search at {again}), {mkor} "
        f"with MKOR and {sgd} with SGD."
    )


def _better_base(kept: Kept) -> str:
    experiment, labels = "bert_pretraining", ("lamb", "mkor", "adamw", "mkor_adamw", "kaisa_adamw")
    losses = kept.last_losses(experiment)
    need(set(labels) <= set(losses), "the records lack a label")
    lamb, mkor, adamw, over, kaisa = (losses[label] for label in labels)
    need(adamw < mkor < lamb, "the order of the losses is another")
    column = "fewer iterations than its base, final quality"
    rows = {row["optimizer"]: row for row in kept.rows("tables/time_to_target") if row["experiment"] == experiment}
    saved = {label: rows[label][column] for label in ("mkor_adamw", "kaisa_adamw")}
    ends = [_ends(cell) for cell in saved.values()]
    need(all(end and end[0] <= 1 <= end[1] for end in ends), "what MKOR or KAISA save over AdamW is decided")
    return (
        f"BERT's validation loss in `{experiment}` ends at {lamb:.2f} with LAMB, {mkor:.2f} with MKOR over LAMB, "
        f"{adamw:.2f} with AdamW, {over:.2f} with MKOR and {kaisa:.2f} with KAISA over AdamW (medians over seeds, no "
        f"intervals). To AdamW's final quality AdamW takes {saved['mkor_adamw']} of MKOR's iterations and "
        f"{saved['kaisa_adamw']} of KAISA's."
    )


def _inert(kept: Kept) -> str:
    places = {"resnet50_imagenet": "ResNet", "autoencoder_lamb": "the autoencoder", "alexnet_cifar100": "AlexNet"}
    phrases = []
    for experiment, name in places.items():
        cosines = (
            (row["optimizer"], float(row["direction_cosine"]))
            for row in kept.rows(f"{experiment}.runs")
            if row["direction_cosine"] and row["status"] == "finished"
        )
        if labels := inert_labels(cosines):
            phrases.append(f"{', '.join(f'`{label}`' for label in labels)} on {name}")
    need(phrases, "no method is inert")
    return (
        "At the values that tuning chose, these leave the direction of the gradient as it is (median cosine "
        f"{INERT:g} or more): {'; '.join(phrases)}."
    )


def _published(kept: Kept) -> str:
    rows = kept.rows("tables/published_consistency")
    differ = sum(row["agrees"].startswith("no") for row in rows)
    need(differ, "all agree")
    return (
        f"Of {len(rows)} numbers that follow from others in the paper, {differ} disagree with what it states (table "
        "`published_consistency`). LAMB takes 1,536 iterations in one table and 1,563 in the others, in the same hours."
    )


def _ladder(kept: Kept) -> str:
    rows = [row | {"rung": row["label"].removesuffix(f"_{row['base']}")} for row in kept.rows("tables/ladder")]
    rungs = {"MAC": "mac", "MKOR": "mkor", "FOOF": "foof", "KAISA": "kfac", "centring the inputs alone": "centred"}
    plain = [row for row in rows if row["inputs"] == "plain" or row["rung"] == "centred"]
    by_rung = {name: [row for row in plain if row["rung"] == rung] for name, rung in rungs.items()}
    need(all(by_rung.values()), "a rung has no row")
    columns = ("iterations / base", "iterations / base, final quality")
    saves, at_end = (
        [f"{name} on {_saves(of_rung, column)}" for name, of_rung in by_rung.items()] for column in columns
    )
    parts = {
        "MKOR's left factor saves some": "mkor / one_side",
        "its memory of past inputs": "one_side / one_vector",
        "MKOR in place of centring": "mkor / centred",
    }
    worth = (f"{part} on {_saves(rows, column)}" for part, column in parts.items())
    decided: dict[str, list[str]] = {}
    by_workload: dict[str, list[Decision]] = {}
    for row in rows:
        if row["prediction"]:
            decision = cast(Decision, row["prediction"].partition(",")[0])
            decided.setdefault(decision, []).append(f"{workload_name(row['workload'])} over {NAMES[row['base']]}")
            by_workload.setdefault(row["workload"], []).append(decision)
    predicted = "; ".join(f"{verb} on {in_words(decided[said])}" for said, verb in _SAID.items() if said in decided)
    general = _SAID[in_general({workload: on_workload(of_it) for workload, of_it in by_workload.items()})]
    vanishes = (
        f" Declared before the runs: MKOR's gain vanishes where inputs are centred. In general this {general}: it "
        f"{predicted}."
    )
    return (
        "A method saves iterations on a pair of a workload and a base if its interval lies below the base's: "
        f"{in_words(saves)} in the mean of all targets (`fig21_ladder`), {in_words(at_end)} at the base's final "
        f"quality. {in_words(worth)}.{vanishes if decided else ''}"
    )


def _batch(kept: Kept) -> str:
    places: dict[tuple[str, str], list[Row]] = {}
    for row in kept.rows("tables/batch_size", "field"):
        if row["prediction"]:
            places.setdefault((row["workload"], row["reference"]), []).append(row)
    tested = {place: rows for place, rows in places.items() if any(row["prediction"] != "not tested" for row in rows)}
    need(tested, "the prediction is not tested on any workload")
    said = (
        f"on {workload_name(workload)} against {style_of(reference).name} this {_predicted(rows, 'slope')}"
        for (workload, reference), rows in tested.items()
    )
    return (
        "Declared before the runs for MKOR, and judged for the others by the same rule: the iterations over those of "
        f"the reference fall as the batch grows. With the slope on logarithmic axes, {'; '.join(said)} "
        "(`fig22_batch_size`)."
    )


def _width(kept: Kept) -> str:
    rows = [row for row in kept.rows("tables/width", "field") if row["where"] == "at the final quality"]
    need(rows, "no width has a final quality")
    largest = max(rows, key=lambda row: int(row["width"]))["width"]
    held_out = [row | {"prediction": row["prediction"] or "not tested"} for row in rows if row["width"] == largest]
    need(any(row["prediction"] != "not tested" for row in held_out), "the prediction is not tested for any label")
    smaller = in_words(dict.fromkeys(row["width"] for row in rows if row["width"] != largest))
    return (
        f"Declared before the runs: the speedup over AdamW at a width of {largest} is what a line through those at "
        f"{smaller} has there, on logarithmic axes. "
        f"With the measured speedup over the predicted one, this {_predicted(held_out, 'measured / predicted')} "
        "(`fig23_width`)."
    )


def _predicted(rows: Sequence[Row], column: str) -> str:
    """Return for which labels a prediction holds, fails and is open or not tested, each with its number in a column."""
    labels: dict[str, list[str]] = {}
    for row in rows:
        shown = f" ({row[column]})" if row[column] else ""
        labels.setdefault(row["prediction"], []).append(f"`{row['label']}`{shown}")
    return ", ".join(f"{verb} for {in_words(labels[said])}" for said, verb in _SAID.items() if said in labels)


def _saves(rows: Sequence[Row], column: str) -> str:
    """Return in how many of the rows with an interval in a column of the ladder's table it lies below 1."""
    ends = [end for row in rows if (end := _ends(row[column]))]
    return f"{sum(high < 1 for _, high in ends)} of {len(ends)}"


def _ends(cell: str) -> tuple[float, float] | None:
    """Return the ends of the interval of a table's cell; None without one, or if it has no end."""
    found = _INTERVAL.search(cell)
    return None if found is None else (float(found[1]), float(found[2]))


FINDINGS: Final[Mapping[str, Callable[[Kept], str]]] = {
    "The printed update rule is not the one that works.": _printed_rule,
    "MKOR needs fewer iterations than LAMB, and MKOR-H saves no time here.": _fewer_iterations,
    "Newer optimizers need fewer iterations still.": _newer,
    "MKOR's factor updates are cheap, its preconditioning is not.": _cheap_updates,
    "A mean vector approximates activations, not gradients; here MKOR's left factor has no effect.": _rank_one,
    "On AlexNet MKOR is faster than the paper's rivals.": _alexnet,
    "Scores after fine-tuning do not tell the optimizers of pre-training apart.": _scores,
    "What the parts of MKOR are worth.": _ladder,
    "What a larger batch changes.": _batch,
    "What a wider model changes.": _width,
    "MKOR is not the least sensitive to the learning rate.": _learning_rate,
    "With both sides acting MKOR needs fewer iterations on the autoencoder.": _both_sides,
    "On the autoencoder over SGD KFAC ends lower than MKOR.": _kfac_ends,
    "AdamW ends lower than MKOR over LAMB; what MKOR adds to AdamW is open.": _better_base,
    "Some rivals are inert where they are compared.": _inert,
    "The published numbers do not all agree with each other.": _published,
}
"""What came out, the strongest first, with the function that writes it or raises `UnsupportedError`."""


FIRST: Final = 5
"""The findings that README has and that stand first on the site."""


def findings(kept: Kept) -> tuple[dict[str, str], dict[str, str]]:
    """Return by headline the findings that the kept results support, as Markdown, and the reasons of the others."""
    found, left_out = {}, {}
    for headline, write in FINDINGS.items():
        try:
            found[headline] = write(kept)
        except UnsupportedError as reason:
            left_out[headline] = str(reason)
    return found, left_out
