"use strict";
(() => {
  const main = document.getElementById("state");
  const live = document.getElementById("live");
  const pause = document.getElementById("pause");
  const SILENT_MS = 10000;
  let source = null, last = Date.now();

  const say = (text) => { if (live.textContent !== text) live.textContent = text; };
  const text = (element, value) => {
    if (element.textContent !== value) element.textContent = value;
  };
  const made = (name, ...children) => {
    const element = document.createElement(name);
    element.append(...children);
    return element;
  };
  const fit = (parent, count, make) => {
    while (parent.children.length > count) parent.lastElementChild.remove();
    while (parent.children.length < count) parent.append(make());
  };
  const row = () =>
    made("div", made("dt", made("bdi")), made("dd", made("bdi")));
  const section = () => made("section", made("h2"), made("dl"));

  const showRow = (element, fact) => {
    const [dt, dd] = element.children;
    if (element.className !== fact.level) element.className = fact.level;
    text(dt.firstElementChild, fact.name);
    text(dd.firstElementChild, fact.value);
    let bar = dd.querySelector("progress");
    if (fact.part === null) {
      if (bar) bar.remove();
      return;
    }
    if (!bar) {
      bar = made("progress");
      bar.max = 1;
      dd.append(bar);
    }
    bar.setAttribute("aria-label", fact.name);
    bar.value = fact.part;
  };
  const show = (state) => {
    fit(main, state.length, section);
    state.forEach(({ title, facts }, at) => {
      const [head, list] = main.children[at].children;
      text(head, title);
      fit(list, facts.length, row);
      facts.forEach((fact, number) => showRow(list.children[number], fact));
    });
  };

  const begin = () => {
    source = new EventSource("/events");
    source.onmessage = (event) => {
      last = Date.now();
      show(JSON.parse(event.data));
      say("Live.");
    };
    source.onerror = () => {
      // After an answer with an error, the browser does not try again by itself.
      if (source && source.readyState === EventSource.CLOSED) end();
    };
  };
  const end = () => {
    if (source) source.close();
    source = null;
  };

  let paused = false;
  pause.hidden = false;
  pause.onclick = () => {
    paused = !paused;
    pause.textContent = paused ? "Continue" : "Pause";
    if (paused) {
      end();
      say("Paused.");
    } else {
      last = Date.now();
      begin();
    }
  };
  setInterval(() => {
    if (paused) return;
    if (!source) begin();
    const silent = Date.now() - last;
    if (silent >= SILENT_MS) {
      say("No answer since " + new Date(last).toLocaleTimeString() + ": this state is old.");
    }
  }, 2000);
  begin();
})();
