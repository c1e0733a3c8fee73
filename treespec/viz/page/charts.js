/** Higher ranks are counted with it. */
const MOST_RANK = 7;

function Bars({ title, rows, name }) {
  return html`<div><h2>${title}</h2>${rows.length ? rows.map(([key, tried, accepted]) => html`<div class="row">
    <span class="name" title=${key}>${name(key)}</span><div class="track"><div class="fill" style="width:${100 * accepted / Math.max(tried, 1)}%"></div></div>
    <span class="count">${percent(accepted / Math.max(tried, 1))} of ${tried}</span></div>`) : html`<span class="empty">nothing was drafted</span>`}</div>`;
}

function Shares({ shares }) {
  const phases = ["prefill", ...PHASES].filter((phase) => shares[phase] > 0);
  return html`<div class="wide"><h2>Where the time went</h2><div class="shares">${phases.map((phase) => html`<div title="${phase} ${percent(shares[phase], 1)}"
    style="width:${100 * shares[phase]}%;background:${colour(`p-${phase}`)}"></div>`)}</div>
    <div class="legend">${phases.map((phase) => html`<span><i style="background:${colour(`p-${phase}`)}"></i>${phase} ${percent(shares[phase], 1)}</span>`)}</div></div>`;
}

function Summary({ found }) {
  const number = (value, text) => html`<div><b>${value}</b>${text}</div>`;
  return html`<section><div class="numbers">${number(found.num_tokens, "tokens")}${number(found.num_passes, "target passes")}
      ${number(found.tokens_per_pass.toFixed(2), "tokens per pass and row")}${number(`${found.ms_per_token.toFixed(1)} ms`, "per token")}
      ${number(`${found.speedup.toFixed(2)}×`, "expected, of plain decoding")}${number(`${found.perfect_speedup.toFixed(1)}×`, "with perfect drafts")}</div>
    ${found.causes.length === 0 && found.num_passes >= 8 && html`<p class="healthy">Nothing holds this run back.</p>`}
    ${found.causes.length > 0 && html`<ol class="causes">${found.causes.map((cause) => html`<li><b>${cause.name}</b>: ${cause.evidence}.
      <p>${cause.change}; expected with it: ${cause.speedup.toFixed(2)}×.</p></li>`)}</ol>`}
    ${found.unknown.map((text) => html`<p class="empty">Not known: ${text}.</p>`)}</section>`;
}

function App() {
  const fragment = new URLSearchParams(location.hash.slice(1));
  const [shown, show] = useState(Number(fragment.get("text") ?? 0));
  const [index, setIndex] = useState(Number(fragment.get("step") ?? 1) - 1);
  const [theme, setTheme] = useState(fragment.get("theme") ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
  const texts = useMemo(() => DATA.calls.flatMap((call, n) => [...new Set(call.steps.map((step) => step.row))].map((row) => ({
    call, steps: call.steps.filter((step) => step.row === row), name: `call ${n + 1}, row ${row + 1}` }))), []);
  const { call, steps } = texts[Math.min(shown, texts.length - 1)];
  const now = Math.min(Math.max(index, 0), steps.length - 1);
  const select = (n) => setIndex(Math.min(Math.max(n, 0), steps.length - 1));
  document.documentElement.dataset.theme = theme;
  useLayoutEffect(() => {
    const rejected = () => steps.findIndex((step, n) => n > now && step.tokens.length > 1 && step.path.length === 1);
    const keys = { ArrowRight: () => now + 1, ArrowLeft: () => now - 1, PageDown: () => now + 10, PageUp: () => now - 10,
      Home: () => 0, End: () => steps.length - 1, r: () => (rejected() < 0 ? now : rejected()) };
    const press = (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || event.target.tagName === "SELECT") return;
      if (event.key === "t") setTheme(theme === "dark" ? "light" : "dark");
      if (!keys[event.key]) return;
      event.preventDefault();
      select(keys[event.key]());
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  });
  return html`<header><div><h1>${DATA.title}</h1><p>${DATA.subtitle}</p></div>
      <div class="bar">${texts.length > 1 && html`<select value=${shown} aria-label="text" onChange=${(event) => { show(Number(event.target.value)); setIndex(0); }}>
        ${texts.map((text, n) => html`<option value=${n}>${text.name}</option>`)}</select>`}
      <button onClick=${() => setTheme(theme === "dark" ? "light" : "dark")}>${theme === "dark" ? "light" : "dark"}</button></div></header>
    <${Summary} found=${DATA.found} /><${Text} call=${call} steps=${steps} index=${now} select=${select} />
    <${Timeline} steps=${steps} index=${now} select=${select} theme=${theme} />
    <${Step} call=${call} steps=${steps} index=${now} select=${select} />
    <section class="charts"><${Shares} shares=${DATA.found.shares} /><${Bars} title="Acceptance by depth" rows=${DATA.by_depth} name=${(key) => `depth ${key}`} />
      <${Bars} title="Acceptance by rank" rows=${DATA.by_rank} name=${(key) => `rank ${key}${key === MOST_RANK ? "+" : ""}`} />
      <${Bars} title="Accepted nodes by drafter" rows=${DATA.by_drafter} name=${(key) => key} /></section>`;
}

render(html`<${App} />`, document.getElementById("app"));
