// Checks of a page, each a function that returns what is wrong: run by tests/support/browser.py.

// Texts that are hard to read: less contrast than WCAG 2.1 AA asks for, 4.5, or 3 for large ones.
function paleTexts() {
const parse = (c) => (c.match(/[\d.]+/g) || []).map(Number);
const light = (c) => { const [r, g, b] = c.slice(0, 3).map((v) => {
  v /= 255; return v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4; });
  return .2126 * r + .7152 * g + .0722 * b; };
const back = (e) => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor);
  if (c.length && (c.length < 4 || c[3] > 0)) return c; }
  return matchMedia("(prefers-color-scheme: dark)").matches ? [18, 18, 18] : [255, 255, 255]; };
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), found = [];
for (let node = walker.nextNode(); node; node = walker.nextNode()) {
  const e = node.parentElement, style = getComputedStyle(e);
  if (!node.data.trim() || !e.checkVisibility() || ["SCRIPT", "STYLE"].includes(e.tagName)) continue;
  const [a, b] = [light(parse(style.color)), light(back(e))].sort((x, y) => y - x);
  const size = parseFloat(style.fontSize), large = size >= 24 || (size >= 18.6 && +style.fontWeight >= 700);
  const ratio = (a + .05) / (b + .05);
  if (ratio < (large ? 3 : 4.5)) found.push(`${node.data.trim().slice(0, 30)}: ${ratio.toFixed(2)}`);
}
return found;
}

// Texts without a Chinese character, but for names: metrics, flags and their values, the date, the hash of a file.
function englishTexts() {
const metrics = "accuracy|auc|roc|precision|recall|mcc|loss|mrr|map|ndcg|pearson|spearman|mse|mean absolute error";
const name = new RegExp(`^(((valid|train|average|log|listwise) )?(${metrics})|[a-z]+_\\w+|sha256 .*|[\\d-]+ [\\d:]+ UTC)$`, "i");
const walker = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT), found = [];
for (let node = walker.nextNode(); node; node = walker.nextNode()) {
  const text = node.data.trim(), isGiven = node.parentElement.closest("[translate=no], code, pre");
  if (!isGiven && /[a-z]{3}/i.test(text) && !/[\u4e00-\u9fff]/.test(text) && !name.test(text)) found.push(text);
}
return found;
}

// The titles of charts, which are SVG pictures, whose legend lies on their axes.
function coveringLegends() {
const found = [];
for (const image of document.images) {
  if (!image.src.startsWith("data:image/svg")) continue;
  const box = document.createElement("div");
  box.innerHTML = decodeURIComponent(escape(atob(image.src.split(",")[1])));
  document.body.append(box);
  const legend = box.querySelector('[id^="legend_"]');
  const panels = [...box.querySelectorAll('[id^="axes_"] > [id^="patch_"]:first-of-type')];
  const over = (a, b) => Math.max(a.left, b.left) < Math.min(a.right, b.right) - 1 &&
    Math.max(a.top, b.top) < Math.min(a.bottom, b.bottom) - 1;
  if (legend && panels.some((panel) => over(legend.getBoundingClientRect(), panel.getBoundingClientRect())))
    found.push(image.alt);
  box.remove();
}
return found;
}
