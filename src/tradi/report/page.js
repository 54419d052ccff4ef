"use strict";
(() => {
  const root = document.documentElement;
  root.classList.add("js");
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];

  // On a phone the contents are folded: the summary comes first.
  if (matchMedia("(max-width: 60rem)").matches) document.querySelector("nav details").open = false;

  // Light and dark: the reader's choice before the system's.
  const theme = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const dark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const label = () => { theme.textContent = dark() ? "Light" : "Dark"; theme.setAttribute("aria-label", `Switch to ${dark() ? "light" : "dark"} colours`); };
  theme.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; label(); });
  system.addEventListener("change", label);
  label();

  // Tables: a press on a head sorts by it, the best first; the next press turns the order.
  const sort = (head) => {
    const table = head.closest("table");
    const body = table.tBodies[0];
    const turned = { ascending: "descending", descending: "ascending" };
    const order = turned[head.getAttribute("aria-sort")] || head.dataset.first || "ascending";
    all("th[aria-sort]", table).forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", order);
    const value = (row) => row.cells[head.cellIndex].dataset.v;
    const compare = (a, b) => {
      const [one, two] = [value(a), value(b)];
      if (one === undefined || two === undefined) return (one === undefined) - (two === undefined); // no number: last
      const numbers = [one, two].map(Number);
      const way = numbers.some(Number.isNaN) ? one.localeCompare(two) : numbers[0] - numbers[1];
      return order === "ascending" ? way : -way;
    };
    body.append(...[...body.rows].sort(compare));
  };
  all("table.sortable").forEach((table) =>
    all("thead th button", table).forEach((button) => button.addEventListener("click", () => sort(button.closest("th")))));

  // Methods: each switch shows and hides what is drawn for it in its section.
  all(".key").forEach((key) => {
    const section = key.closest("section");
    const switches = all("button[data-m]", key);
    const usual = new Set(switches.filter((one) => one.getAttribute("aria-pressed") === "true"));
    const more = key.querySelector("[data-more]");
    const fewer = more?.textContent;
    const open = (on) => {
      key.classList.toggle("open", on);
      if (more) Object.assign(more, { ariaExpanded: String(on), textContent: on ? "fewer" : fewer });
    };
    more?.addEventListener("click", () => open(!key.classList.contains("open")));
    const drawn = (one) => all(`.s[data-m="${one.dataset.m}"], .mini[data-m="${one.dataset.m}"]`, section);
    const set = (one, on) => {
      one.setAttribute("aria-pressed", String(on));
      drawn(one).forEach((part) => part.classList.toggle("off", !on));
    };
    const stress = (one) => all(".s[data-m]", section).forEach((part) =>
      part.classList.toggle("faint", one !== null && part.dataset.m !== one.dataset.m));
    switches.forEach((one) => {
      set(one, usual.has(one));
      one.addEventListener("click", () => { stress(null); set(one, one.getAttribute("aria-pressed") !== "true"); });
      one.addEventListener("pointerenter", () => { if (one.getAttribute("aria-pressed") === "true") stress(one); });
      one.addEventListener("pointerleave", () => stress(null));
    });
    key.querySelector("[data-all]").addEventListener("click", () => { open(true); switches.forEach((one) => set(one, true)); });
    key.querySelector("[data-usual]").addEventListener("click", () => { open(false); switches.forEach((one) => set(one, usual.has(one))); });
  });

  // Variants: one panel at a time.
  all(".tabs").forEach((tabs, number) => {
    const panels = all(":scope > .panel", tabs);
    const list = document.createElement("div");
    list.setAttribute("role", "tablist");
    list.setAttribute("aria-label", tabs.dataset.label);
    const buttons = panels.map((panel, place) => {
      const button = document.createElement("button");
      Object.assign(button, { type: "button", textContent: panel.dataset.tab, id: `tab-${number}-${place}` });
      panel.id = `panel-${number}-${place}`;
      button.setAttribute("role", "tab");
      button.setAttribute("aria-controls", panel.id);
      panel.setAttribute("role", "tabpanel");
      panel.setAttribute("aria-labelledby", button.id);
      list.append(button);
      return button;
    });
    const choose = (chosen) => buttons.forEach((button, place) => {
      button.setAttribute("aria-selected", String(place === chosen));
      button.tabIndex = place === chosen ? 0 : -1;
      panels[place].hidden = place !== chosen;
    });
    buttons.forEach((button, place) => {
      button.addEventListener("click", () => choose(place));
      button.addEventListener("keydown", (event) => {
        const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        if (!step) return;
        const next = (place + step + buttons.length) % buttons.length;
        event.preventDefault();
        choose(next);
        buttons[next].focus();
      });
    });
    tabs.prepend(list);
    choose(0);
  });

  // Pictures: two of them on either side of a divider.
  all(".comparison").forEach((part) => {
    const chosen = (what) => part.querySelector(`select[data-choose=${what}]`).value;
    const update = () => all(".layers", part).forEach((layers) => {
      const fits = (image, name) => image.dataset.name === name && ["", chosen("kind")].includes(image.dataset.kind);
      all("img", layers).forEach((image) => {
        image.classList.toggle("over", fits(image, chosen("left")));
        image.classList.toggle("under", fits(image, chosen("right")));
        if (chosen("left") === chosen("right")) image.classList.remove("over", fits(image, chosen("right")) ? "over" : "under");
        image.hidden = !image.classList.contains("over") && !image.classList.contains("under");
      });
      layers.parentElement.querySelector(".names").textContent = `${chosen("left")} | ${chosen("right")}`;
    });
    all("select", part).forEach((select) => select.addEventListener("change", update));
    all("input[type=range]", part).forEach((input) => input.addEventListener("input", () =>
      input.parentElement.style.setProperty("--at", `${input.value}%`)));
    update();
  });
})();
