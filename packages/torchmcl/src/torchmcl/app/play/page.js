// The whole page: the story, the keys, the address, and one clock for all animations.
(function (play) {
  "use strict";

  const $ = (id) => document.getElementById(id);
  let waiting = 0; // the timer of the address

  function tellStory(page, number) {
    const { title, text, attempt } = play.story[Math.max(number, 1) - 1];
    $("story-title").textContent = `${Math.max(number, 1)}. ${title}`;
    $("story-body").textContent = text;
    $("story-try").textContent = attempt;
    [...$("story-steps").querySelectorAll("button")].forEach((button, place) => {
      if (place === Math.max(number, 1) - 1) button.setAttribute("aria-current", "step");
      else button.removeAttribute("aria-current");
    });
    $("story-back").disabled = number <= 1;
    $("story-next").disabled = number >= play.story.length;
  }

  /** Go to a step of the story; points that the reader drew are kept for later. */
  function goTo(page, number) {
    const { own } = page.state;
    page.load(play.readState(`${play.story[number - 1].state}&story=${number}`, { ...play.defaultState(), own }));
    tellStory(page, number);
    writeAddress(page.state);
  }

  /** Keep the address up to date without filling the history of the browser. */
  function writeAddress(state) {
    clearTimeout(waiting);
    const hash = play.writeState(state);
    history.replaceState(null, "", hash ? `#${hash}` : location.pathname + location.search);
  }

  /** Browsers slow down pages that change their address in each frame, as a drag would: only the last state matters. */
  function writeAddressSoon(state) {
    clearTimeout(waiting);
    waiting = setTimeout(() => writeAddress(state), 300);
  }

  function readAddress(page) {
    if (!location.hash) return goTo(page, 1);
    page.load(play.readState(location.hash));
    return tellStory(page, page.state.story);
  }

  function listenToKeys(page) {
    const keys = {
      " ": () => page.toggle(), ".": () => page.single(), r: () => page.restart(), n: () => page.newStart(),
      "[": () => page.nudge(-0.02), "]": () => page.nudge(0.02),
    };
    document.addEventListener("keydown", (event) => {
      // Fields have their own keys, and a space presses the button that has the focus.
      const busy = event.target.closest(event.key === " " ? "input, select, button, summary, a" : "input, select");
      if (event.ctrlKey || event.metaKey || event.altKey || busy) return;
      if (/^[1-7]$/.test(event.key)) goTo(page, Number(event.key));
      else if (Object.hasOwn(keys, event.key)) keys[event.key]();
      else return;
      event.preventDefault();
    });
  }

  function buildStory(page) {
    $("story-steps").replaceChildren(...play.story.map(({ title }, place) => {
      const button = play.element("button", { type: "button", textContent: place + 1, title });
      button.ariaLabel = `Step ${place + 1}: ${title}`;
      button.addEventListener("click", () => goTo(page, place + 1));
      return play.element("li", {}, [button]);
    }));
    const move = (by) => goTo(page, Math.min(Math.max((page.state.story || 1) + by, 1), play.story.length));
    $("story-back").addEventListener("click", () => move(-1));
    $("story-next").addEventListener("click", () => move(1));
  }

  /** Redraw when colors or sizes change; print is always light. */
  function followTheScreen(redraw) {
    const repaint = () => { play.forgetColours(); redraw(); };
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
    window.addEventListener("resize", repaint);
    for (const [name, on] of [["beforeprint", true], ["afterprint", false]]) {
      window.addEventListener(name, () => {
        document.documentElement.toggleAttribute("data-print", on);
        repaint();
      });
    }
  }

  function begin() {
    const page = new play.PointsPage(writeAddressSoon);
    buildStory(page);
    readAddress(page);
    const network = new play.NetworkPage();
    listenToKeys(page);
    window.addEventListener("hashchange", () => readAddress(page));
    followTheScreen(() => { page.repaint(); network.show(); });
    const tick = () => {
      page.frame();
      network.frame();
      requestAnimationFrame(tick);
    };
    requestAnimationFrame(tick);
    Object.assign(play, { page, networkPage: network });
  }

  begin();
})((globalThis.torchmclPlay ??= {}));
