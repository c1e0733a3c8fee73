"use strict";
const { html, render, useEffect, useLayoutEffect, useMemo, useRef, useState } = htmPreact;
const DATA = JSON.parse(document.getElementById("trace").textContent);
const PHASES = ["draft", "target", "verify", "commit", "other"];
const TARGET = "target";

const percent = (share, digits = 0) => (share == null ? "–" : `${(100 * share).toFixed(digits)}%`);
const prob = (p) => (p == null ? "–" : p !== 0 && p < 0.001 ? p.toExponential(1) : p.toFixed(3));
const ms = (seconds) => `${(1e3 * seconds).toFixed(1)} ms`;
const colour = (name) => `var(--${name})`;
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const visible = (text) => text.replaceAll("\n", "⏎").replaceAll("\t", "⇥").replace(/^ +| +$/g, (s) => "␣".repeat(s.length));
const label = (call, token) => visible(call.texts[token] ?? `#${token}`);
const drafterColour = (name) => (name === TARGET ? "transparent" : colour(`c${DATA.drafters.indexOf(name) % 6}`));
const drafterOf = (step, node) => DATA.drafters.find((name) => (step.drafters[name] ?? []).includes(node)) ?? "other";

/** The emitted tokens of one step: text, probability after the token before, and the drafter that gave it. */
function emittedOf(call, step) {
  return step.emitted.map((token, i) => {
    const node = step.path[i + 1];
    const isDraft = node !== undefined;
    const text = step.pieces.length ? step.pieces[i] : ` ${token}`;
    return { text, token, by: isDraft ? drafterOf(step, node) : TARGET, p: isDraft ? step.target_probs[node] : step.next_prob };
  });
}

function Text({ call, steps, index, select }) {
  const box = useRef(null);
  const spans = useMemo(
    () => steps.map((step, n) => emittedOf(call, step).map((t) => html`<span data-step=${n} title="${t.by}, target ${prob(t.p)}"
      style=${t.by === TARGET ? "" : `background:${drafterColour(t.by)}`}>${t.text}</span>`)),
    [call, steps]
  );
  useEffect(() => {
    box.current.querySelectorAll(".here").forEach((span) => span.classList.remove("here"));
    const now = box.current.querySelectorAll(`[data-step="${index}"]`);
    now.forEach((span) => span.classList.add("here"));
    const first = now[0];
    if (!first) return;
    const top = first.offsetTop - box.current.offsetTop;
    if (top < box.current.scrollTop || top > box.current.scrollTop + box.current.clientHeight - 30) {
      box.current.scrollTop = top - box.current.clientHeight / 2;
    }
  }, [index, spans]);
  const click = (event) => event.target.dataset?.step && select(Number(event.target.dataset.step));
  const prompt = useMemo(() => call.prompts[steps[0]?.row] ?? "", [call, steps]);
  return html`<section><h2>Text</h2>
    <div class="text" ref=${box} onClick=${click} tabindex="0"><${Fixed} key=${steps} prompt=${prompt} spans=${spans} /></div>
    <div class="legend">${[...DATA.drafters, TARGET].map((name) => html`<span><i style="background:${drafterColour(name)};border-color:var(--line)"></i>${
      name === TARGET ? "the target's own token" : `accepted from ${name}`}</span>`)}</div></section>`;
}

/** Never rendered again: the text has as many elements as tokens. */
class Fixed extends htmPreact.Component {
  shouldComponentUpdate(next) { return next.spans !== this.props.spans; }
  render({ prompt, spans }) { return html`<span class="prompt">${prompt}</span>${spans}`; }
}

/** Of long runs the mean of neighbours, so that a line is left. */
const windowOf = (count) => (count < 600 ? 1 : Math.round(count / 150));
function smoothed(values) {
  const width = windowOf(values.length), sums = [0];
  values.forEach((value) => sums.push(sums.at(-1) + value));
  return values.map((_, n) => {
    const low = Math.max(0, n - Math.floor(width / 2)), high = Math.min(values.length, low + width);
    return (sums[high] - sums[low]) / (high - low);
  });
}

function Timeline({ steps, index, select, theme }) {
  const box = useRef(null), plot = useRef(null), at = useRef(0);
  at.current = index;
  // The mark lies over the plot, so that the next step draws nothing again.
  const mark = (u, n) => { u.over.querySelector(".now").style.left = `${u.valToPos(n + 1, "x") - 1}px`; };
  useEffect(() => {
    const stacked = steps.map((step) => PHASES.reduce((sums, phase) => [...sums, (sums.at(-1) ?? 0) + 1e3 * (step.seconds[phase] ?? 0)], []));
    const areas = PHASES.map((_, i) => stacked.map((sums) => sums[i])).reverse();
    const axis = { stroke: css("soft"), grid: { stroke: css("faint") }, ticks: { stroke: css("line") } };
    const tokens = smoothed(steps.map((step) => step.emitted.length));
    const top = Math.max(...tokens, 2);
    plot.current = new uPlot({
      width: box.current.clientWidth, height: 190, cursor: { drag: { x: false, y: false }, points: { show: false } },
      scales: { x: { time: false }, ms: { range: (_, low, high) => [0, high * 1.05 || 1] }, tokens: { range: [0, top * 1.6] } },
      axes: [{ ...axis, label: "step", labelSize: 18, size: 34, incrs: [1, 2, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10000, 25000] }, { ...axis, scale: "ms", label: "ms", labelSize: 18, size: 52 },
        { ...axis, scale: "tokens", side: 1, label: "tokens", labelSize: 18, grid: { show: false }, size: 40,
          values: (_, ticks) => ticks.map((tick) => (Number.isInteger(tick) ? tick : "")) }],
      series: [{}, ...[...PHASES].reverse().map((phase) => ({ scale: "ms", stroke: css(`p-${phase}`), fill: css(`p-${phase}`), width: 0, points: { show: false } })),
        { scale: "tokens", stroke: css("ink"), width: 1.2, points: { show: steps.length < 150, size: 4, fill: css("ink") } }],
      hooks: { init: [(u) => u.over.appendChild(Object.assign(document.createElement("div"), { className: "now" }))], draw: [(u) => mark(u, at.current)] },
    }, [steps.map((_, n) => n + 1), ...areas, tokens], box.current);
    const resize = () => plot.current?.setSize({ width: box.current.clientWidth, height: 190 });
    addEventListener("resize", resize);
    return () => { removeEventListener("resize", resize); plot.current.destroy(); plot.current = null; };
  }, [steps, theme]);
  useEffect(() => mark(plot.current, index), [index, steps, theme]);
  const click = () => plot.current?.cursor.idx != null && select(plot.current.cursor.idx);
  return html`<section><h2>Time line</h2><div ref=${box} onClick=${click}></div>
    <div class="legend">${PHASES.map((phase) => html`<span><i style="background:${colour(`p-${phase}`)}"></i>${phase}</span>`)}
      <span><i style="background:var(--ink);height:3px;vertical-align:3px"></i>emitted tokens${windowOf(steps.length) > 1 ? `, mean of ${windowOf(steps.length)} steps` : ""} (right axis)</span></div></section>`;
}

/** Where the nodes are drawn; the next token is one more child of the path's last node. */
function layOut(call, step) {
  const nodes = step.tokens.map((token, id) => ({ id, token, parent: step.parents[id], text: label(call, token), p: step.target_probs[id] }));
  const next = { id: nodes.length, token: step.next_token, parent: step.path.at(-1), text: label(call, step.next_token), p: step.next_prob, isNext: true };
  const all = [...nodes, next].map((node) => ({ ...node, short: node.text.length > 16 ? `${node.text.slice(0, 15)}…` : node.text }));
  const root = d3.stratify().id((node) => node.id).parentId((node) => (node.parent < 0 ? null : node.parent))(all);
  const widths = [];
  root.each((at) => {
    at.width = 8 * Math.max(at.data.short.length, 2) + (at.data.id ? 54 : 18);
    widths[at.depth] = Math.max(widths[at.depth] ?? 0, at.width);
  });
  const lefts = widths.map((_, depth) => 8 + widths.slice(0, depth).reduce((sum, width) => sum + width + 42, 0));
  d3.tree().nodeSize([27, 1]).separation(() => 1)(root);
  const top = Math.min(...root.descendants().map((at) => at.x));
  root.each((at) => { at.left = lefts[at.depth]; at.top = at.x - top + 18; });
  const height = Math.max(...root.descendants().map((at) => at.top)) + 20;
  return { nodes: root.descendants(), links: root.links(), width: lefts.at(-1) + widths.at(-1) + 12, height };
}

function Tree({ call, step, tip }) {
  const laid = useMemo(() => layOut(call, step), [call, step]);
  const kind = (node) => (node.isNext ? "next" : step.path.includes(node.id) ? "accepted" : "");
  return html`<div class="tree"><svg width=${laid.width} height=${laid.height} role="img" aria-label="token tree">
    ${laid.links.map(({ source, target }) => {
      const [x0, x1] = [source.left + source.width, target.left];
      const middle = (x0 + x1) / 2;
      return html`<path class="edge ${kind(target.data)}" stroke-width=${1 + 4 * (target.data.p ?? 0)}
        d="M${x0},${source.top}C${middle},${source.top} ${middle},${target.top} ${x1},${target.top}" />`;
    })}
    ${laid.nodes.map((at) => html`<g class="node ${kind(at.data)}" transform="translate(${at.left},${at.top})"
      onMouseMove=${(event) => tip(event, at.data)} onMouseLeave=${() => tip(null)}>
      <rect class="box" y="-11" width=${at.width} height="22" rx="6" style=${kind(at.data) ? "" : fill(step, at.data)} />
      <text x="9" xml:space="preserve">${at.data.short}</text>
      ${at.data.id > 0 && html`<text class="prob" x=${at.width - 7}>${at.data.p == null ? "–" : percent(at.data.p)}</text>`}
    </g>`)}</svg></div>`;
}

const fill = (step, node) => (node.id ? `fill:${drafterColour(drafterOf(step, node.id))}` : "");

function Tip({ call, step, at }) {
  if (!at) return null;
  const { node, x, y } = at;
  const drafters = Object.entries(step.drafters).filter(([, nodes]) => nodes.includes(node.id)).map(([name]) => name);
  const rows = node.isNext
    ? [["token", node.token], ["kind", step.is_bonus ? "bonus token, after a leaf" : "residual token, children rejected"],
      ["target", prob(step.next_prob)], ["target's highest", prob(step.top_prob)], ["residual mass", prob(step.residual_mass)],
      ["draw", prob(step.draws?.[step.path.at(-1)])]]
    : [["node", node.id], ["token", node.token], ["draft", prob(step.draft_probs[node.id])], ["target", prob(step.target_probs[node.id])],
      ["drafter", drafters.join(", ") || "–"], ["coin", prob(step.coins?.[node.id])], ["draw", prob(step.draws?.[node.id])],
      ["verdict", node.id === 0 ? "root" : step.path.includes(node.id) ? "accepted" : "rejected or not reached"]];
  const left = Math.min(x + 14, innerWidth - 300), top = Math.min(y + 14, innerHeight - 220);
  return html`<div class="tip" style="left:${left}px;top:${top}px"><b>${node.text}</b><table>${rows.map(([name, value]) => html`<tr><td>${name}</td><td>${value}</td></tr>`)}</table></div>`;
}

function Step({ call, steps, index, select }) {
  const [at, setAt] = useState(null);
  const step = steps[index];
  useEffect(() => setAt(null), [step]);
  const tip = (event, node) => setAt(event && { node, x: event.clientX, y: event.clientY });
  const total = PHASES.reduce((sum, phase) => sum + (step.seconds[phase] ?? 0), 0);
  const fact = (name, value) => html`<span>${name} <b>${value}</b></span>`;
  return html`<section><div class="bar"><h2>Step ${index + 1} of ${steps.length}</h2>
      <span class="keys"><kbd>←</kbd> <kbd>→</kbd> step · <kbd>PgUp</kbd> <kbd>PgDn</kbd> ten · <kbd>Home</kbd> <kbd>End</kbd> · <kbd>r</kbd> next without an accepted token · <kbd>t</kbd> dark</span>
      <button onClick=${() => select(index - 1)} aria-label="previous step">←</button><button onClick=${() => select(index + 1)} aria-label="next step">→</button></div>
    <div class="facts">${fact("context", `${step.context} tokens`)}${fact("nodes", step.tokens.length)}${fact("accepted", step.path.length - 1)}
      ${fact("rule", step.rule)}${fact("residual mass", prob(step.residual_mass))}${fact("time", ms(total))}
      ${PHASES.filter((phase) => step.seconds[phase] > 0).map((phase) => fact(phase, ms(step.seconds[phase])))}
      ${step.waits > 0 && fact("waits", step.waits)}${step.choice && fact("chosen", `${step.choice.name}: ${step.choice.reason}`)}</div>
    <${Tree} call=${call} step=${step} tip=${tip} /><${Tip} call=${call} step=${step} at=${at} /></section>`;
}
