(() => {
  "use strict";
  const root = document.documentElement;
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  root.classList.add("js");

  // Light and dark: what the system says, until the reader says otherwise.
  const THEME = "feedline-theme";
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const themeSwitch = document.querySelector("[data-theme-switch]");
  const remembered = (value) => {
    try {
      if (value) localStorage.setItem(THEME, value);
      return localStorage.getItem(THEME);
    } catch {
      return null; // files opened from disk may have no storage
    }
  };
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : dark.matches);
  const showTheme = () => {
    themeSwitch.textContent = isDark() ? "Light" : "Dark";
    themeSwitch.setAttribute("aria-pressed", String(isDark()));
    themeSwitch.setAttribute("aria-label", isDark() ? "Switch to light" : "Switch to dark");
  };
  if (["light", "dark"].includes(remembered())) root.dataset.theme = remembered();
  themeSwitch.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    remembered(root.dataset.theme);
    showTheme();
  });
  dark.addEventListener("change", showTheme);
  showTheme();

  // Hashes are shown short; a press copies the whole.
  const copy = async (text) => {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const field = document.body.appendChild(document.createElement("textarea")); // without TLS, or not permitted
      field.value = text;
      field.select();
      document.execCommand("copy");
      field.remove();
    }
  };
  for (const button of all("[data-copy]")) {
    button.addEventListener("click", async () => {
      await copy(button.dataset.copy);
      button.focus();
      button.dataset.copied = "";
      setTimeout(() => delete button.dataset.copied, 1500);
    });
  }

  // Tables sort by the column whose heading is pressed; numbers first by what is largest.
  const cellValue = (row, column) => {
    const cell = row.cells[column];
    return cell.dataset.value === undefined ? cell.textContent.trim() : Number(cell.dataset.value);
  };
  const sortBy = (table, heading) => {
    const column = heading.cellIndex;
    const rows = [...table.tBodies[0].rows];
    const isNumber = rows.length > 0 && typeof cellValue(rows[0], column) === "number";
    const before = heading.getAttribute("aria-sort");
    const ascending = before === "none" ? !isNumber : before === "descending";
    const compare = isNumber
      ? (one, other) => cellValue(one, column) - cellValue(other, column)
      : (one, other) => cellValue(one, column).localeCompare(cellValue(other, column), undefined, { numeric: true });
    rows.sort((one, other) => (ascending ? compare(one, other) : compare(other, one)));
    table.tBodies[0].append(...rows);
    for (const other of all("th[aria-sort]", table)) other.setAttribute("aria-sort", "none");
    heading.setAttribute("aria-sort", ascending ? "ascending" : "descending");
  };
  for (const button of all("[data-sort]")) {
    button.addEventListener("click", () => sortBy(button.closest("table"), button.closest("th")));
  }

  // Filters: an item stays when every control agrees; a group stays when one of its items does.
  for (const section of all("[data-filter]")) {
    const controls = all("[data-by]", section);
    const items = all("[data-item]", section);
    const groups = all("[data-group]", section);
    const count = section.querySelector("[data-count]");
    const none = section.querySelector("[data-none]");
    const agrees = (item, control) =>
      control.value === "" ||
      (control.type === "search"
        ? item.dataset.search.includes(control.value.trim().toLowerCase())
        : item.dataset[control.dataset.by] === control.value);
    const apply = () => {
      let left = 0;
      for (const item of items) {
        item.hidden = !controls.every((control) => agrees(item, control));
        left += item.hidden ? 0 : 1;
      }
      for (const group of groups) group.hidden = !group.querySelector("[data-item]:not([hidden])");
      count.textContent = left === items.length ? "" : `${left} of ${items.length}`;
      none.hidden = left > 0;
    };
    if (!count) continue; // a section without anything to filter
    for (const control of controls) control.addEventListener("input", apply);
    apply(); // a reloaded page keeps what was typed
  }

  // The large picture. Its facts are copied as nodes, never as markup.
  const viewer = document.getElementById("viewer");
  const picture = viewer.querySelector("[data-picture]");
  const facts = viewer.querySelector("[data-facts]");
  let shown = null;
  const show = (button) => {
    const small = button.querySelector("img");
    shown = button;
    picture.src = small.src;
    picture.alt = small.alt;
    picture.className = small.className;
    const known = button.closest("[data-view]").querySelector("dl");
    facts.replaceChildren(...[...known.children].map((node) => node.cloneNode(true)));
  };
  const step = (by) => {
    const views = all("[data-open]", shown.closest("[data-views]")).filter((button) => button.offsetParent !== null);
    const next = views[(views.indexOf(shown) + by + views.length) % views.length];
    if (next) show(next);
  };
  for (const button of all("[data-open]")) {
    button.addEventListener("click", () => {
      show(button);
      viewer.showModal();
    });
  }
  for (const button of all("[data-step]")) button.addEventListener("click", () => step(Number(button.dataset.step)));
  viewer.querySelector("[data-close]").addEventListener("click", () => viewer.close());
  viewer.addEventListener("click", (event) => {
    const set = event.target.closest("a");
    if (set) shown = null;
    if (event.target === viewer || set) viewer.close();
    if (!set) return;
    event.preventDefault();
    const target = document.getElementById(set.hash.slice(1)) || document.getElementById("duplicates"); // not all are shown
    target.scrollIntoView();
    target.tabIndex = -1;
    target.focus({ preventScroll: true });
  });
  // Of the document, because a link among the facts that had the focus is replaced with them.
  document.addEventListener("keydown", (event) => {
    if (viewer.open && event.key === "ArrowLeft") step(-1);
    if (viewer.open && event.key === "ArrowRight") step(1);
  });
  viewer.addEventListener("close", () => shown && shown.focus());

  // The section in view, in the list of sections.
  const links = new Map(all("nav a").map((link) => [link.hash.slice(1), link]));
  const watcher = new IntersectionObserver(
    (entries) => {
      for (const entry of entries) {
        if (!entry.isIntersecting) continue;
        for (const link of links.values()) link.removeAttribute("aria-current");
        const link = links.get(entry.target.id);
        if (link) link.setAttribute("aria-current", "true");
      }
    },
    { rootMargin: "-10% 0px -80% 0px" },
  );
  for (const section of all("section[id]")) watcher.observe(section);
})();
