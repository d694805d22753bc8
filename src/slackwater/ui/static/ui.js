// Shows whether the page receives new commits. htmx replaces the blocks that a commit changes.
(function () {
  "use strict";
  var state = "as loaded";
  function show(text) {
    if (text) state = text;
    var place = document.getElementById("link");
    if (place) { place.textContent = state; place.className = state === "live" ? "live" : "stale"; }
  }
  document.addEventListener("htmx:sseOpen", function () { show("live"); });
  document.addEventListener("htmx:sseError", function () { show("disconnected; as of this commit"); });
  // the slider of kept commits; without scripts, the commits are links
  function slide(event) {
    var range = event.target;
    if (range.id !== "epochs") return;
    var epochs = range.dataset.epochs.split(","), last = Number(range.value) === epochs.length - 1;
    location.href = range.dataset.base + (last ? "/" : "/epoch/" + epochs[Number(range.value)]);
  }
  document.addEventListener("change", slide);
  var range = document.getElementById("epochs");
  if (range) range.hidden = false;
  // when a commit replaces a block, tables that the reader has opened stay open
  document.addEventListener("htmx:sseBeforeMessage", function (event) {
    var place = event.target;
    place.dataset.open = Array.from(place.querySelectorAll("details")).map(function (d) { return d.open ? "1" : "0"; }).join("");
  });
  document.addEventListener("htmx:sseMessage", function (event) {
    var open = event.target.dataset.open || "";
    event.target.querySelectorAll("details").forEach(function (d, n) { d.open = open[n] === "1"; });
    show();
  });
})();
