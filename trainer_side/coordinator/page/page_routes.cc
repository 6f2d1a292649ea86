#include "trainer_side/coordinator/page/page_routes.h"

#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "shared/base/clock.h"
#include "trainer_side/coordinator/page/page_assets.h"

namespace wsync::page {
namespace {

constexpr std::chrono::milliseconds kLoopDeadline{5'000};
constexpr const char* kJson = "application/json";
// The page may load only its own style sheet, script and JSON. No other page may show it in a
// frame, and it sends no forms.
constexpr const char* kPolicy =
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

// The latest facts, shared by all readers.
class SharedFacts {
 public:
  using Found = std::shared_ptr<const PageFacts>;
  SharedFacts(Asker& asker, std::function<PageFacts()> facts)
      : asker_(asker), facts_(std::move(facts)) {}

  // One reader queries the loop. Readers that arrive meanwhile wait for the answer.
  Result<Found> get() {
    const std::lock_guard lock(mutex_);
    if (last_ && now() - asked_ < kFactsKept) return *last_;
    auto found = asker_.ask<PageFacts>(facts_, kLoopDeadline);
    if (found)
      last_ = std::make_shared<const PageFacts>(std::move(*found));
    else
      last_ = fail(std::move(found).error());
    asked_ = now();
    return *last_;
  }

 private:
  Asker& asker_;
  const std::function<PageFacts()> facts_;
  std::mutex mutex_;
  TimePoint asked_{};
  std::optional<Result<Found>> last_;
};

void answer_json(http::Exchange& exchange, SharedFacts& shared) {
  const auto facts = shared.get();
  nlohmann::json answer;
  if (facts) {
    answer = status_json(**facts);
  } else {
    exchange.response.status = 503;
    answer = {{"error", facts.error().message()}};
  }
  // Replace bytes that are not UTF-8, so that dump() does not throw.
  exchange.response.set_content(
      answer.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n", kJson);
}

// `policy`: what a browser lets the document do; null: nothing, the default of StatusPages.
http::Route asset(const char* path, std::string_view text, const char* type,
                  const char* policy = nullptr) {
  return {"GET", path, [text, type, policy](http::Exchange& exchange) {
            if (policy != nullptr) exchange.response.set_header("Content-Security-Policy", policy);
            exchange.response.set_content(std::string(text), type);
          }};
}

}  // namespace

std::vector<http::Route> page_routes(Asker& asker, std::function<PageFacts()> facts) {
  const auto shared = std::make_shared<SharedFacts>(asker, std::move(facts));
  return {{"GET", "/status.json",
           [shared](http::Exchange& exchange) { answer_json(exchange, *shared); }},
          asset("/", page_html(), "text/html; charset=utf-8", kPolicy),
          asset("/page.css", page_css(), "text/css; charset=utf-8"),
          asset("/page.js", page_js(), "text/javascript; charset=utf-8")};
}

}  // namespace wsync::page
