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
    fill();
  }

  function fill() {
    body.replaceChildren(...sorted.slice(0, shown).map((row) => element("tr", {}, ...columns.map((column) => {
      const cell = element("td", { class: column.number ? "number" : "", "data-label": column.title });
      const holder = column.small ? element("span") : cell;
      holder.append(column.show ? column.show(row) : String(column.value(row)));
      if (column.small) {
        const small = column.small(row);
        if (small) holder.append(element("span", { class: "small" }, small));
        cell.append(holder);
      }
      return cell;
    }))));
    count.textContent = number(Math.min(shown, sorted.length)) + " of " + number(sorted.length);
    more.hidden = shown >= sorted.length;
  }

  root.append(element("div", { class: "tools" }, search, count),
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
    ? "The log has no flow." : clock(data.from) + " to " + clock(data.to) + " UTC, from " + data.files.join(", ");
  const notes = ["Made by brodo " + data.version + "."];
  if (data.lost > 0) notes.push(number(data.lost) + " records are missing: they came faster than they could be written.");
  if (data.unreadable > 0) notes.push(number(data.unreadable) + " lines could not be read.");
  if (data.omitted > 0) notes.push(number(data.omitted) + " flows to further destinations are left out.");
  document.getElementById("footer").textContent = notes.join(" ");
}

function timeline() {
  const { from, to, lanes } = data;
  const root = document.getElementById("timeline");
  if (from === null) return;
  const width = 1000, left = 250, right = 74, lane = 20, head = 96, steps = data.out.length;
  const height = head + lanes.length * lane + 26;
  const step = (width - left - right) / steps;
  const svg = drawn("svg", { viewBox: `0 0 ${width} ${height}`, role: "img" });
  svg.append(drawn("title", {}, "Bytes over time, in all and of the destinations with most bytes"));
  const peak = Math.max(1, ...data.out, ...data.in);
  const middle = 48, scale = 40 / peak;
  svg.append(drawn("text", { x: left - 8, y: middle - 14, "text-anchor": "end" }, "sent"),
    drawn("text", { x: left - 8, y: middle + 22, "text-anchor": "end" }, "received"),
    drawn("text", { x: width - right + 8, y: middle - 30 }, bytes(peak)));
  data.out.forEach((count, n) => {
    const x = left + n * step, bar = Math.max(step - .4, .4);
    const up = count * scale, down = data.in[n] * scale;
    if (up > 0) svg.append(drawn("rect", { x, y: middle - up, width: bar, height: up, fill: "var(--out)" }));
    if (down > 0) svg.append(drawn("rect", { x, y: middle, width: bar, height: down, fill: "var(--in)" }));
    if (data.stopped[n] > 0) {
      svg.append(drawn("rect", { x, y: middle + 42, width: Math.max(bar, 2), height: 4, fill: "var(--refused)" }));
    }
  });
  svg.append(drawn("line", { x1: left, x2: width - right, y1: middle, y2: middle, stroke: "var(--line)" }));
  lanes.forEach(({ label, total, cells }, row) => {
    const y = head + row * lane, most = Math.max(1, ...cells);
    const short = label.length > 38 ? label.slice(0, 37) + "\u2026" : label;
    svg.append(drawn("text", { x: left - 8, y: y + 13, "text-anchor": "end" }, short),
      drawn("text", { x: width - right + 8, y: y + 13 }, bytes(total)),
      drawn("line", { x1: left, x2: width - right, y1: y + 9, y2: y + 9, stroke: "var(--line)" }));
    cells.forEach((count, n) => {
      if (count <= 0) return;
      const strength = .3 + .7 * Math.log1p(count) / Math.log1p(most);
      svg.append(drawn("rect", { x: left + n * step, y: y + 3, width: Math.max(step, 1), height: 12,
        fill: "var(--out)", "fill-opacity": strength.toFixed(2) }));
    });
  });
  for (let n = 0; n <= 4; n += 1) {
    const anchor = n === 0 ? "start" : n === 4 ? "end" : "middle";
    svg.append(drawn("text", { x: left + (width - left - right) * n / 4, y: height - 8, "text-anchor": anchor },
      hour(from + (to - from) * n / 4)));
  }
  root.append(svg);
}

totals();
timeline();
table("reached", [
  { title: "Name or address", value: (row) => row.name,
    small: (row) => row.addresses.filter((one) => one !== row.name).join(", ") + (row.more ? " and others" : "") },
  { title: "Port", value: (row) => row.port, show: (row) => row.protocol + (row.port > 0 ? " " + row.port : "") },
  { title: "Flows", number: true, value: (row) => row.flows, show: (row) => number(row.flows) },
  { title: "Failed", number: true, value: (row) => row.failed, show: (row) => row.failed > 0 ? number(row.failed) : "" },
  { title: "Sent", number: true, value: (row) => row.out, show: (row) => bytes(row.out) },
  { title: "Received", number: true, value: (row) => row.in, show: (row) => bytes(row.in) },
  { title: "First", value: (row) => row.first, show: (row) => clock(row.first) },
  { title: "Last", value: (row) => row.last, show: (row) => clock(row.last) },
], data.reached, 5, "Nothing was reached.");
table("refused", [
  { title: "Destination", value: (row) => row.what },
  { title: "Reason", value: (row) => row.reason, small: (row) => row.stage },
  { title: "Times", number: true, value: (row) => row.count, show: (row) => number(row.count) },
  { title: "First", value: (row) => row.first, show: (row) => clock(row.first) },
  { title: "Last", value: (row) => row.last, show: (row) => clock(row.last) },
  { title: "Rule that would allow it", value: (row) => row.allow ?? "",
    show: (row) => row.allow ? element("code", {}, row.allow) : "" },
], data.refused, 2, "Nothing was refused.");
