/* Pages by address (#claim/C01), filters, search, sorting, and the enlarged figure. Without this script the file shows
   all pages, one below the other. */
"use strict";

(() => {
  const all = (selector, inside = document) => [...inside.querySelectorAll(selector)];
  const one = (selector, inside = document) => inside.querySelector(selector);
  const pages = new Map(all("section.page").map((page) => [page.id, page]));
  const menu = all("header.top nav a");
  const START = "summary";
  const RUNS = JSON.parse(one("#runs-of-claims").textContent);
  // The menu's entry of a page whose address begins so.
  const ABOVE = { claim: "claims", curves: "curves", figure: "figures", table: "tables" };

  const read = () => {
    const [address, query] = location.hash.slice(1).split("?");
    return { address: decodeURIComponent(address) || START, query: new URLSearchParams(query || "") };
  };

  /* Pages. The place in a page is kept in the history, because hidden pages have none. */
  const shownAt = () => (history.state && history.state.top) || 0;
  let waiting;
  addEventListener("scroll", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => history.replaceState({ ...history.state, top: scrollY }, ""), 150);
  });
  history.scrollRestoration = "manual";

  const showPage = (address) => {
    const everything = address === "everything";
    const inside = !pages.has(address) && document.getElementById(address);
    const id = everything || pages.has(address) ? address : (inside && inside.closest("section.page") || { id: START }).id;
    for (const [name, page] of pages) page.classList.toggle("shown", everything || name === id);
    for (const link of menu) {
      const isHere = link.hash.slice(1) === (ABOVE[id.split("/")[0]] || id);
      if (isHere) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    const page = everything ? null : pages.get(id);
    document.title = page ? `${one("h1", page).textContent.trim()} · MKOR and its rivals` : "MKOR and its rivals";
    return page;
  };

  let last = null;
  const route = () => {
    const { address, query } = read();
    const page = showPage(address);
    fit();
    all("img[data-of]", page || document).forEach((image) => {
      if (!image.src) image.src = document.getElementById(image.dataset.of).src;
    });
    if (page && page.id === "claims") filterByVerdict(query.get("verdict"));
    if (page && page.id === "runs") filterByClaim(query.get("claim"));
    clearTimeout(waiting);
    if (address !== last) {
      scrollTo(0, shownAt());
      if (last !== null && page) one("h1", page).focus({ preventScroll: true });
    }
    const isHere = address === last;
    last = address;
    document.dispatchEvent(new CustomEvent("page-shown", { detail: page || document }));
    const target = page && address !== page.id && document.getElementById(address);
    if (target && page.contains(target)) target.scrollIntoView({ block: "center" });
    if (page && query.has("zoom")) openZoom(one("a.picture img", page), isHere);
    else if (zoom.open) zoom.close();
  };

  /* Filters: what a filter hides has its class; an entry is shown if it has none of them. */
  const HIDING = ["no-match", "no-verdict", "no-claim", "no-mark"];
  const update = (holder) => {
    const entries = entriesOf(holder);
    for (const entry of entries) entry.hidden = HIDING.some((name) => entry.classList.contains(name));
    const shown = entries.filter((entry) => !entry.hidden).length;
    const isFiltered = shown < entries.length;
    if (isFiltered !== holder.classList.contains("filtered")) unfold(holder, isFiltered);
    holder.classList.toggle("filtered", isFiltered);
    for (const group of all("tbody", holder)) {
      const heading = one("tr.group", group);
      if (heading) heading.hidden = all("tr:not(.group)", group).every((row) => row.hidden);
    }
    const found = one(`.found[data-of="${holder.id}"]`);
    found.textContent = !isFiltered ? "" : shown ? `${shown} of ${entries.length}` : found.dataset.nothing;
    fit();
  };
  const entriesOf = (holder) => all(holder.tagName === "TABLE" ? "tbody tr:not(.group)" : ":scope > li", holder);

  const textOf = (entry) => {
    const group = entry.tagName === "TR" ? one("tr.group", entry.parentNode) : null;
    // Identifiers are tooltips.
    const titles = all("[title]", entry).map((part) => part.title).join(" ");
    return `${group ? group.textContent : ""} ${entry.textContent} ${titles}`.toLowerCase();
  };
  for (const input of all("input[data-filters]")) {
    const holder = document.getElementById(input.dataset.filters);
    input.addEventListener("input", () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      for (const entry of entriesOf(holder)) {
        const text = textOf(entry);
        entry.classList.toggle("no-match", !words.every((word) => text.includes(word)));
      }
      update(holder);
    });
  }

  for (const box of all("input[data-only-marked]")) {
    const table = document.getElementById(box.dataset.onlyMarked);
    box.addEventListener("change", () => {
      for (const row of entriesOf(table)) row.classList.toggle("no-mark", box.checked && !one(".mark", row));
      update(table);
    });
  }

  const filterByVerdict = (verdict) => {
    const table = one("#claim-table");
    if (!table) return;
    for (const row of entriesOf(table)) {
      const fits = !verdict || (verdict === "differs" ? "differs" in row.dataset : row.dataset.verdict === verdict);
      row.classList.toggle("no-verdict", !fits);
    }
    for (const chip of all(".chip")) {
      const own = new URLSearchParams(chip.hash.split("?")[1] || "").get("verdict");
      if (own === verdict) chip.setAttribute("aria-current", "true");
      else chip.removeAttribute("aria-current");
    }
    update(table);
  };

  const filterByClaim = (claim) => {
    const runs = claim && RUNS[claim] ? new Set(RUNS[claim]) : null;
    const table = one("#run-table");
    for (const row of entriesOf(table)) {
      const run = one("td[data-label=run]", row).textContent;
      row.classList.toggle("no-claim", runs !== null && !runs.has(run));
    }
    const only = one("#runs .only");
    only.hidden = runs === null;
    if (runs) {
      const link = one("a", only);
      link.setAttribute("href", `#claim/${claim}`);
      link.textContent = `claim ${claim}`;
    }
    update(table);
  };

  /* Sorting, within the groups of a table. Numbers come before texts, and empty cells last. */
  const key = (row, column) => {
    const cell = row.cells[column].cloneNode(true);
    all(".range, svg", cell).forEach((part) => part.remove());
    const text = cell.textContent.trim();
    const number = parseFloat(text.replace(/^[^\d.+-]*(?=[\d.+-])/, ""));
    return { text, number: /^[-+]?[\d.]/.test(text) ? number : NaN };
  };
  const compare = (a, b) => {
    if (!a.text || !b.text) return !a.text - !b.text;
    const isNumber = [!isNaN(a.number), !isNaN(b.number)];
    if (isNumber[0] && isNumber[1]) return a.number - b.number || a.text.localeCompare(b.text);
    return isNumber[1] - isNumber[0] || a.text.localeCompare(b.text, "en", { numeric: true });
  };
  const sort = (table, column, direction) => {
    for (const group of all("tbody", table)) {
      const rows = all("tr:not(.group)", group).map((row) => ({ row, key: key(row, column) }));
      rows.sort((a, b) => (a.key.text && b.key.text ? direction : 1) * compare(a.key, b.key));
      group.append(...rows.map(({ row }) => row));
    }
    all("thead th", table).forEach((head, index) => {
      if (index === column) head.setAttribute("aria-sort", direction > 0 ? "ascending" : "descending");
      else head.removeAttribute("aria-sort");
    });
  };
  for (const table of all("table.sortable")) {
    const heads = all("thead th", table);
    const select = document.createElement("select");
    const listed = all("tbody", table).map((group) => [group, all("tr", group)]);
    select.add(new Option("as listed", ""));
    heads.forEach((head, index) => {
      const name = head.textContent.trim().replace(/\s+/g, " ");
      const button = document.createElement("button");
      button.type = "button";
      button.className = "sort";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => sort(table, index, head.getAttribute("aria-sort") === "ascending" ? -1 : 1));
      for (const [direction, arrow] of [[1, "↑"], [-1, "↓"]]) select.add(new Option(`${name} ${arrow}`, `${index} ${direction}`));
    });
    // The headings are hidden where rows are cards: there a list takes their place.
    const label = document.createElement("label");
    label.className = "sort-by";
    label.append("Sort by ", select);
    select.addEventListener("change", () => {
      if (select.value) sort(table, ...select.value.split(" ").map(Number));
      else for (const [group, rows] of listed) group.append(...rows);
    });
    (table.closest(".scroll") || table).before(label);
  }

  /* Groups of a long table, closed until their heading or the table's button is pressed, or a filter is set. */
  const turn = (fold, isOpen) => {
    fold.closest("tbody").classList.toggle("closed", !isOpen);
    fold.setAttribute("aria-expanded", String(isOpen));
  };
  const unfold = (holder, isOpen) => {
    all(".fold", holder).forEach((fold) => turn(fold, isOpen));
    const button = one(`[data-unfolds="${holder.id}"]`);
    if (!button) return;
    button.setAttribute("aria-pressed", String(isOpen));
    button.textContent = isOpen ? "Close all groups" : "Open all groups";
  };
  for (const fold of all(".fold")) {
    fold.addEventListener("click", () => {
      turn(fold, fold.getAttribute("aria-expanded") === "false");
      fit();
    });
  }
  for (const button of all("[data-unfolds]")) {
    const table = document.getElementById(button.dataset.unfolds);
    button.addEventListener("click", () => {
      unfold(table, button.getAttribute("aria-pressed") === "false");
      fit();
    });
  }

  /* A table that is wider than its page is set closer, and if that is not enough, shows its rows as cards. */
  const fit = () => {
    for (const table of all(".page.shown table.data")) {
      const room = (table.closest(".scroll") || table.parentNode).clientWidth;
      table.classList.remove("as-cards", "close-set");
      for (const look of ["close-set", "as-cards"]) if (table.scrollWidth > room + 1) table.classList.add(look);
    }
  };
  addEventListener("toggle", () => fit(), true);
  let resized;
  addEventListener("resize", () => {
    clearTimeout(resized);
    resized = setTimeout(fit, 50);
  });

  /* Paper has a width of its own, so tables are fitted to it before they are printed. */
  for (const [moment, isPaper] of [["beforeprint", true], ["afterprint", false]]) {
    addEventListener(moment, () => {
      document.body.classList.toggle("paper", isPaper);
      fit();
    });
  }

  // The address names a page, so the link to the content must not change it.
  one(".skip").addEventListener("click", (event) => {
    event.preventDefault();
    one("#main").focus();
  });

  /* The enlarged figure. Its size is a share of the picture's own, or null to fit the window. */
  const zoom = one("#zoom");
  const canvas = one(".canvas", zoom);
  const enlarged = one("img", zoom);
  let scale = null;
  let cameFromPage = false;
  // The point of the figure below the pointer, or in the middle of the window, stays there.
  const rescale = (value, event) => {
    const [before, view] = [enlarged, canvas].map((element) => element.getBoundingClientRect());
    const [x, y] = event ? [event.clientX, event.clientY] : [view.x + view.width / 2, view.y + view.height / 2];
    scale = value;
    enlarged.classList.toggle("fits", value === null);
    enlarged.style.width = value === null ? "" : `${value * enlarged.naturalWidth}px`;
    if (!before.width) return;
    const after = enlarged.getBoundingClientRect();
    const across = after.x - x + ((x - before.x) / before.width) * after.width;
    const down = after.y - y + ((y - before.y) / before.height) * after.height;
    canvas.scrollBy(across, down);
  };
  const openZoom = (image, isHere) => {
    cameFromPage = isHere;
    enlarged.src = image.src;
    enlarged.alt = image.alt;
    one(".name", zoom).textContent = image.alt;
    rescale(null);
    if (!zoom.open) zoom.showModal();
    canvas.focus();
  };
  const step = (factor, event) => {
    const now = scale || enlarged.clientWidth / enlarged.naturalWidth;
    rescale(Math.min(8, Math.max(0.1, now * factor)), event);
  };
  const ACTIONS = { in: () => step(1.5), out: () => step(1 / 1.5), fit: () => rescale(null), close: () => zoom.close() };
  all("[data-zoom]", zoom).forEach((button) => button.addEventListener("click", ACTIONS[button.dataset.zoom]));
  enlarged.addEventListener("click", (event) => (scale === null ? step(2, event) : rescale(null)));
  zoom.addEventListener("keydown", (event) => {
    const action = { "+": "in", "=": "in", "-": "out", 0: "fit" }[event.key];
    if (action) ACTIONS[action]();
  });
  zoom.addEventListener("close", () => {
    const { address, query } = read();
    if (!query.has("zoom")) return;
    if (cameFromPage) history.back();
    else history.replaceState(history.state, "", `#${address}`);
  });

  for (const page of pages.values()) one("h1", page).tabIndex = -1;
  document.documentElement.classList.add("js");
  addEventListener("hashchange", route);
  route();
})();
