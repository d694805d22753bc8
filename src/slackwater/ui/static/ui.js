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
