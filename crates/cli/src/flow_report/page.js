"use strict";
// All that comes from the log is put into the page as text, never as markup.
const data = JSON.parse(document.getElementById("data").textContent);
const PAGE = 250, PRINTED = 2000;

function element(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key === "on") made.addEventListener(value[0], value[1]);
    else if (key === "class") made.className = value;
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

function drawn(name, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  while (count >= 1023.5 && unit < units.length - 1) { count /= 1024; unit += 1; }
  return (unit === 0 || count >= 99.95 ? count.toFixed(0) : count.toPrecision(3)) + " " + units[unit];
}

const number = (count) => count.toLocaleString("en");
const clock = (ms) => ms === null ? "" : new Date(ms).toISOString().replace("T", " ").slice(0, 19);
const hour = (ms) => clock(ms).slice(11);
// The header has the day.
const isOneDay = data.from !== null && clock(data.from).slice(0, 10) === clock(data.to).slice(0, 10);
const moment = (ms) => isOneDay ? hour(ms) : clock(ms);

// A time in the unit in which it has at most two digits before the point.
const span = (ms) => {
  for (const [unit, size] of [["s", 1e3], ["min", 6e4], ["h", 3.6e6]]) {
    if (ms < 99.5 * size) return (ms / size).toPrecision(2) + " " + unit;
  }
  return Math.round(ms / 8.64e7) + " days";
};

// Names are bytes of the guest's: characters that show nothing, or turn the direction of the others, are
// shown by their numbers.
const visible = (text) => text.replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu,
  (one) => "\\u{" + one.codePointAt(0).toString(16) + "}");

// The text that a search looks at, made at the first one: the page opens sooner without.
function searched(row) {
  row.text ??= Object.values(row).flat().join(" ").toLowerCase();
  return row.text;
}

function table(place, columns, rows, first, empty) {
  const root = document.getElementById(place);
  if (rows.length === 0) { root.append(element("p", {}, empty)); return; }
  let order = first, down = true, wanted = "", shown = PAGE, sorted = [];
  const body = element("tbody"), count = element("span", { "aria-live": "polite" });
  const more = element("button", { class: "more", type: "button", on: ["click", () => { shown += 4 * PAGE; fill(); }] }, "Show more");
  const search = element("input", { type: "search", placeholder: "Search", "aria-label": "Search " + place,
    on: ["input", (event) => { wanted = event.target.value.toLowerCase(); shown = PAGE; sort(); }] });
  // A telephone shows no headings.
  const choice = element("select", { "aria-label": "Order of " + place, on: ["change", () => {
    order = choice.selectedIndex;
    down = Boolean(columns[order].number);
    sort();
  }] }, ...columns.map((column) => element("option", {}, "by " + column.title.toLowerCase())));
  const heads = columns.map((column, n) => element("th", { scope: "col", class: column.number ? "number" : "" },
    element("button", { type: "button", on: ["click", () => {
      down = n === order ? !down : Boolean(column.number);
      order = n;
      sort();
    }] }, column.title)));

  function sort() {
    const { value } = columns[order];
    sorted = wanted === "" ? rows.slice() : rows.filter((row) => searched(row).includes(wanted));
    const sign = down ? -1 : 1;
    sorted.sort((a, b) => {
      const [x, y] = [value(a), value(b)];
      return sign * (x < y ? -1 : x > y ? 1 : 0);
    });
    heads.forEach((head, n) => n === order
      ? head.setAttribute("aria-sort", down ? "descending" : "ascending")
      : head.removeAttribute("aria-sort"));
    choice.selectedIndex = order;
    fill();
  }

  function cell(column, row) {
    const classes = ["number", "short", "wide"].filter((name) => column[name]);
    const made = element("td", { class: classes.join(" "), "data-label": column.title });
    const text = column.show ? column.show(row) : visible(String(column.value(row)));
    const small = column.small ? visible(column.small(row)) : "";
    made.append(...(text === "" ? [] : [column.small ? element("span", {}, text) : text]));
    if (small) made.lastChild.append(element("span", { class: "small" }, small));
    if (column.most > 0) {
      made.classList.add("bar");
      made.style.setProperty("--share", (100 * column.value(row) / column.most).toFixed(2) + "%");
    }
    return made;
  }

  function fill() {
    body.replaceChildren(...sorted.slice(0, shown).map((row) =>
      element("tr", {}, ...columns.map((column) => cell(column, row)))));
    count.textContent = number(Math.min(shown, sorted.length)) + " of " + number(sorted.length);
    more.hidden = shown >= sorted.length;
  }

  root.append(element("div", { class: "tools" }, search, choice, count),
    element("div", { class: "scroll" }, element("table", {}, element("thead", {}, element("tr", {}, ...heads)), body)), more);
  addEventListener("beforeprint", () => { shown = Math.max(shown, PRINTED); fill(); });
  sort();
}

function totals() {
  const sum = (rows, of) => rows.reduce((all, row) => all + of(row), 0);
  const entries = [
    ["Destinations", number(data.reached.length)], ["Flows", number(sum(data.reached, (row) => row.flows))],
    ["Sent", bytes(sum(data.reached, (row) => row.out))], ["Received", bytes(sum(data.reached, (row) => row.in))],
    ["Refused", number(sum(data.refused, (row) => row.count))],
  ];
  document.getElementById("totals").append(...entries.map(([name, value]) => element("div", {},
    element("dt", {}, name), element("dd", { class: name === "Refused" && value !== "0" ? "refused" : "" }, value))));
  document.getElementById("span").textContent = data.from === null
    ? "The log has no flow." : clock(data.from) + " to " + clock(data.to) + " UTC, from " + visible(data.files.join(", "));
  const notes = ["Made by brodo " + data.version + "."];
  if (data.lost > 0) notes.push(number(data.lost) + " records are missing: they came faster than they could be written.");
  if (data.unreadable > 0) notes.push(number(data.unreadable) + " lines could not be read.");
  if (data.omitted > 0) notes.push(number(data.omitted) + " flows to further destinations, or refused ones, are left out.");
  document.getElementById("footer").textContent = notes.join(" ");
}

// Runs of neighbours with the same strength, so that no seam shows between them.
function runs(cells, strength) {
  const found = [];
  cells.forEach((count, n) => {
    const level = count > 0 ? strength(count) : 0, last = found.at(-1);
    if (last && last.level === level) last.end = n + 1;
    else found.push({ level, begin: n, end: n + 1 });
  });
  return found.filter(({ level }) => level > 0);
}

const LEVELS = 5;

// Total bytes, refusals, and a lane for each of the destinations; labels beside the lanes, or above them.
function timeline(shape, width, left, right, lane) {
  const { from, to, lanes, out, in: back, stopped } = data;
  const steps = out.length, step = (width - left - right) / steps, above = left === 0;
  const middle = above ? 64 : 46, refused = middle + 46, head = refused + (stopped.some((count) => count > 0) ? 22 : 2);
  const height = head + lanes.length * lane + 26, end = width - right;
  const svg = drawn("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", class: shape });
  const place = (n) => left + n * step;
  const text = (x, y, what, more = {}) => svg.append(drawn("text", { x, y, ...more }, what));
  const beside = (y, what, color) => text(left - 10, y, what, { "text-anchor": "end", style: "fill:" + color });
  svg.append(drawn("title", {}, "Bytes over time, in all and of the destinations with most bytes"));
  const peak = Math.max(1, ...out, ...back), scale = 40 / peak;
  const most = bytes(peak) + " in " + span((to - from) / steps);
  if (above) {
    text(0, 12, "sent", { style: "fill:var(--out)" });
    text(32, 12, "received", { style: "fill:var(--in)" });
    if (head > refused + 2) text(86, 12, "refused", { style: "fill:var(--refused)" });
    text(width, 12, "at most " + most, { "text-anchor": "end" });
  } else {
    beside(middle - 12, "sent", "var(--out)");
    beside(middle + 20, "received", "var(--in)");
    text(end + 8, middle - 4, "at most");
    text(end + 8, middle + 10, most);
  }
  const bar = Math.max(step, 1);
  out.forEach((count, n) => {
    const up = count * scale, down = back[n] * scale;
    if (up > 0) svg.append(drawn("rect", { x: place(n), y: middle - up, width: bar, height: up, fill: "var(--out)" }));
    if (down > 0) svg.append(drawn("rect", { x: place(n), y: middle, width: bar, height: down, fill: "var(--in)" }));
  });
  svg.append(drawn("line", { x1: left, x2: end, y1: middle, y2: middle, stroke: "var(--line)" }));
  if (head > refused + 2) {
    if (!above) beside(refused + 9, "refused", "var(--refused)");
    stopped.forEach((count, n) => count > 0 && svg.append(drawn("rect",
      { x: place(n), y: refused, width: Math.max(bar, 2), height: 10, fill: "var(--refused)" })));
  }
  lanes.forEach(({ label, total, cells }, row) => {
    const top = head + row * lane, y = above ? top + 18 : top + 4, most = Math.max(1, ...cells);
    const name = visible(label), long = above ? 44 : 36, short = name.length > long ? name.slice(0, long - 1) + "\u2026" : name;
    const group = drawn("g", {});
    const line = (x, what, more) => group.append(drawn("text", { x, y: top + 13, ...more }, what));
    group.append(drawn("title", {}, name + ": " + bytes(total)));
    if (above) {
      line(0, short, { class: "name" });
      line(width, bytes(total), { "text-anchor": "end" });
    } else {
      line(left - 10, short, { class: "name", "text-anchor": "end" });
      line(end + 8, bytes(total), {});
    }
    group.append(drawn("rect", { x: left, y, width: end - left, height: 11, fill: "var(--panel)" }));
    const level = (count) => Math.max(1, Math.ceil(LEVELS * Math.log1p(count) / Math.log1p(most)));
    for (const { level: strength, begin, end: behind } of runs(cells, level)) {
      group.append(drawn("rect", { x: place(begin), y, width: Math.max((behind - begin) * step, 1.5), height: 11,
        fill: "var(--lane)", "fill-opacity": (.28 + .72 * strength / LEVELS).toFixed(2) }));
    }
    svg.append(group);
  });
  const marks = above ? 2 : 4;
  for (let n = 0; n <= marks; n += 1) {
    const anchor = n === 0 ? "start" : n === marks ? "end" : "middle";
    text(left + (end - left) * n / marks, height - 8, moment(from + (to - from) * n / marks), { "text-anchor": anchor });
  }
  return svg;
}

totals();
if (data.from !== null) {
  document.getElementById("timeline").append(timeline("wide", 1000, 240, 112, 20), timeline("narrow", 380, 0, 0, 36));
}
const most = (of) => data.reached.reduce((all, row) => Math.max(all, of(row)), 0);
table("reached", [
  { title: "Name or address", wide: true, value: (row) => row.name,
    small: (row) => row.addresses.filter((one) => one !== row.name).join(", ") + (row.more ? " and others" : "") },
  { title: "Port", short: true, value: (row) => row.port, show: (row) => row.protocol + (row.port > 0 ? " " + row.port : "") },
  { title: "Flows", number: true, value: (row) => row.flows, show: (row) => number(row.flows) },
  { title: "Failed", number: true, value: (row) => row.failed,
    show: (row) => row.failed > 0 ? element("span", { class: "failed" }, number(row.failed)) : "" },
  { title: "Sent", number: true, most: most((row) => row.out), value: (row) => row.out, show: (row) => bytes(row.out) },
  { title: "Received", number: true, most: most((row) => row.in), value: (row) => row.in, show: (row) => bytes(row.in) },
  { title: "First", short: true, value: (row) => row.first, show: (row) => moment(row.first) },
  { title: "Last", short: true, value: (row) => row.last, show: (row) => moment(row.last) },
], data.reached, 5, "Nothing was reached.");
table("refused", [
  { title: "Destination", wide: true, value: (row) => row.what, small: (row) => row.stage },
  { title: "Reason", wide: true, value: (row) => row.why ?? row.reason, small: (row) => row.why ? row.reason : "" },
  { title: "Times", number: true, value: (row) => row.count, show: (row) => number(row.count) },
  { title: "First", short: true, value: (row) => row.first, show: (row) => moment(row.first) },
  { title: "Last", short: true, value: (row) => row.last, show: (row) => moment(row.last) },
  { title: "Rule that would allow it", wide: true, value: (row) => row.allow ?? "",
    show: (row) => row.allow ? element("code", {}, visible(row.allow)) : "" },
], data.refused, 2, "Nothing was refused.");
