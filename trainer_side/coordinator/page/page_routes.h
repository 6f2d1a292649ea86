// The routes of a coordinator's page: /, /status.json, /page.css and /page.js.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "shared/loop/ask.h"
#include "shared/observe/http/http_server.h"
#include "trainer_side/coordinator/page/status_page.h"

namespace wsync::page {

// The facts are taken on the loop at most so often, however many readers there are; meanwhile they
// are given what was found, or why nothing was.
inline constexpr std::chrono::milliseconds kFactsKept{200};

// For StatusPages. `facts` is called on the loop; the rest is done by the server's threads.
// Outlives: what `asker` refers to outlives the routes' use.
[[nodiscard]] std::vector<http::Route> page_routes(Asker& asker, std::function<PageFacts()> facts);

}  // namespace wsync::page
