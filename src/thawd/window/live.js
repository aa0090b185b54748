// Refreshes the page when something was recorded. Without JavaScript, pages work and are refreshed by hand.
"use strict";
(() => {
  let events = null;
  let isWaiting = false;

  // A page is not replaced while somebody uses it: a selection or a field would be lost.
  const isInUse = () => {
    const main = document.getElementById("content");
    const focused = document.activeElement;
    return document.hidden || String(document.getSelection()) !== "" || (focused !== main && main.contains(focused));
  };

  const refresh = async () => {
    if (isWaiting || isInUse()) return;
    isWaiting = true;
    try {
      const answer = await fetch(location.href, { headers: { accept: "text/html" } });
      if (!answer.ok) return;
      const text = await answer.text();
      const fresh = new DOMParser().parseFromString(text, "text/html").querySelector("main[data-live]");
      const main = document.getElementById("content");
      if (fresh && !isInUse()) {
        main.replaceChildren(...fresh.childNodes);
        main.dataset.live = fresh.dataset.live;
      }
    } catch {
      // The server is not reachable now; the stream of events connects again.
    } finally {
      isWaiting = false;
    }
  };

  // A browser has six connections to a server, so a page that nobody sees must not hold one of them.
  const follow = () => {
    if (document.hidden) {
      events?.close();
      events = null;
    } else if (events === null) {
      const shown = document.getElementById("content").dataset.live;
      events = new EventSource("/_thawd/window/live" + (shown ? "?shown=" + encodeURIComponent(shown) : ""));
      events.addEventListener("changed", refresh);
    }
  };

  document.addEventListener("visibilitychange", () => {
    follow();
    refresh();
  });
  follow();
})();
