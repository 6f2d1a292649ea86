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

// Minimum interval between two queries to the loop, regardless of the number of readers. In
// between, readers receive the last answer, or the reason why there was none.
inline constexpr std::chrono::milliseconds kFactsKept{200};

// Routes for StatusPages. `facts` is called on the loop; the threads of the server create the JSON.
// Everything that `asker` refers to must outlive the routes.
[[nodiscard]] std::vector<http::Route> page_routes(Asker& asker, std::function<PageFacts()> facts);

}  // namespace wsync::page
