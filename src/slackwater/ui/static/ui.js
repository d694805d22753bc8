// Says whether the page follows the commits; all else is htmx.
(function () {
  "use strict";
  var state = "as loaded";
  function show(text) {
    if (text) state = text;
    var place = document.getElementById("link");
    if (place) { place.textContent = state; place.className = state === "live" ? "live" : "stale"; }
  }
  document.addEventListener("htmx:sseOpen", function () { show("live"); });
  document.addEventListener("htmx:sseError", function () { show("no connection: as of the commit shown"); });
  document.addEventListener("htmx:afterSwap", function () { show(); });
  // the kept commits as a slider; without scripts they are links
  function slide(event) {
    var range = event.target;
    if (range.id !== "epochs") return;
    var epochs = range.dataset.epochs.split(","), last = Number(range.value) === epochs.length - 1;
    location.href = range.dataset.base + (last ? "/" : "/epoch/" + epochs[Number(range.value)]);
  }
  document.addEventListener("change", slide);
  var range = document.getElementById("epochs");
  if (range) range.hidden = false;
  // tables that a reader opened stay open through a commit
  document.addEventListener("htmx:beforeSwap", function (event) {
    var target = event.detail.target;
    target.dataset.open = Array.from(target.querySelectorAll("details")).map(function (d) { return d.open ? "1" : "0"; }).join("");
  });
  document.addEventListener("htmx:afterSettle", function (event) {
    var target = event.detail.target, open = (target && target.dataset.open) || "";
    if (target) target.querySelectorAll("details").forEach(function (d, n) { d.open = open[n] === "1"; });
  });
})();
