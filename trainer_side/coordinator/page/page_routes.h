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

// The facts are asked of the loop at most this often, however many readers there are. Between two
// questions readers get the last answer, or the reason why there was none.
inline constexpr std::chrono::milliseconds kFactsKept{200};

// For StatusPages. `facts` is called on the loop; JSON is made by the threads of the server.
// Outlives: what `asker` refers to outlives the routes' use.
[[nodiscard]] std::vector<http::Route> page_routes(Asker& asker, std::function<PageFacts()> facts);

}  // namespace wsync::page
