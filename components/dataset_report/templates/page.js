(() => {
  "use strict";
  const root = document.documentElement;
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  root.classList.add("js");

  // Light or dark theme: that of the operating system, unless the reader has selected one.
  const THEME = "feedline-theme";
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const themeSwitch = document.querySelector("[data-theme-switch]");
  const storedTheme = (value) => {
    try {
      if (value) localStorage.setItem(THEME, value);
      return localStorage.getItem(THEME);
    } catch {
      return null; // pages opened from disk may have no storage
    }
  };
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : dark.matches);
  const showTheme = () => {
    themeSwitch.textContent = isDark() ? "Light" : "Dark";
    themeSwitch.setAttribute("aria-pressed", String(isDark()));
    themeSwitch.setAttribute("aria-label", isDark() ? "Switch to light" : "Switch to dark");
  };
  if (["light", "dark"].includes(storedTheme())) root.dataset.theme = storedTheme();
  themeSwitch.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    storedTheme(root.dataset.theme);
    showTheme();
  });
  dark.addEventListener("change", showTheme);
  showTheme();

  // Hashes are shortened; a click copies the complete hash.
  const copy = async (text) => {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const field = document.body.appendChild(document.createElement("textarea")); // without TLS or permission
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

  // A click on a heading sorts the table by this column; numbers are first sorted in descending order.
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

  // Filters: an item is visible if it matches every control; a group is visible if one of its items is.
  for (const section of all("[data-filter]")) {
    const controls = all("[data-by]", section);
    const items = all("[data-item]", section);
    const groups = all("[data-group]", section);
    const count = section.querySelector("[data-count]");
    const none = section.querySelector("[data-none]");
    const matches = (item, control) =>
      control.value === "" ||
      (control.type === "search"
        ? item.dataset.search.includes(control.value.trim().toLowerCase())
        : item.dataset[control.dataset.by] === control.value);
    const apply = () => {
      let visible = 0;
      for (const item of items) {
        item.hidden = !controls.every((control) => matches(item, control));
        visible += item.hidden ? 0 : 1;
      }
      for (const group of groups) group.hidden = !group.querySelector("[data-item]:not([hidden])");
      count.textContent = visible === items.length ? "" : `${visible} of ${items.length}`;
      none.hidden = visible > 0;
    };
    if (!count) continue; // the section has no items to filter
    for (const control of controls) control.addEventListener("input", apply);
    apply(); // after a reload, the browser restores the values of the controls
  }

  // The enlarged picture. Its facts are copied as nodes, never as markup.
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
    const target = document.getElementById(set.hash.slice(1)) || document.getElementById("duplicates"); // not all sets are shown
    target.scrollIntoView();
    target.tabIndex = -1;
    target.focus({ preventScroll: true });
  });
  // The document listens, because a link in the facts may have the focus, and is removed when the facts change.
  document.addEventListener("keydown", (event) => {
    if (viewer.open && event.key === "ArrowLeft") step(-1);
    if (viewer.open && event.key === "ArrowRight") step(1);
  });
  viewer.addEventListener("close", () => shown && shown.focus());

  // Marks the visible section in the list of sections.
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
