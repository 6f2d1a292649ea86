#include "bench/recovery/rank_process.h"

#include <charconv>
#include <csignal>
#include <utility>

#include "shared/base/format.h"

namespace wsync::bench {
namespace {

using nlohmann::json;

constexpr std::chrono::milliseconds kReadWait{100};
constexpr std::chrono::seconds kRankPatience{5};
constexpr std::size_t kTornTold = 8;
// What a rank says of a torn step that it has only been told of; the one that saw it says more.
constexpr std::string_view kElsewhere = "in another rank";

// Of "http://127.0.0.1:8000".
std::uint16_t port_of(const std::string& url) {
  std::uint16_t port = 0;
  const char* const end = url.data() + url.size();
  std::from_chars(url.data() + url.rfind(':') + 1, end, port);
  return port;
}

}  // namespace

RankProcess::RankProcess(Child child, std::string name, const Interrupt& interrupt)
    : name_(std::move(name)), interrupt_(interrupt), child_(std::move(child)) {
  thread_ = std::thread([this] { read(); });
}

Result<std::unique_ptr<RankProcess>> RankProcess::start(ChildOptions options, std::string name,
                                                        const Interrupt& interrupt) {
  auto child = WSYNC_TRY(Child::start(std::move(options)));
  return std::unique_ptr<RankProcess>(
      new RankProcess(std::move(child), std::move(name), interrupt));
}

RankProcess::~RankProcess() {
  stopping_ = true;
  thread_.join();
  child_.stop(kRankPatience);
}

RankView RankProcess::view() const {
  const std::lock_guard lock(mutex_);
  return view_;
}

void RankProcess::ask_to_end() {
  asked_ = true;
  ::kill(child_.pid(), SIGTERM);
}

void RankProcess::read() {
  while (!stopping_) {
    const auto line = child_.line(interrupt_, now() + kReadWait);
    if (line) {
      take(*line);
      continue;
    }
    if (line.error().code() == ErrorCode::kDeadline) continue;
    const std::lock_guard lock(mutex_);
    view_.ended = true;
    const bool in_order = asked_ && !view_.outcome.is_null();
    if (!in_order && !view_.failure) view_.failure = line.error();
    return;
  }
}

void RankProcess::take(const std::string& line) {
  const std::lock_guard lock(mutex_);
  try {
    const json said = json::parse(line);
    const std::string event = said.value("event", "");
    if (event == "listening") view_.port = port_of(said.at("url"));
    if (event == "attached") view_.attached = true;
    if (event == "stats") {
      view_.steps = said.at("steps");
      ++view_.stats_told;
    }
    if (event == "torn" && said.at("why") != kElsewhere && view_.torn.size() < kTornTold)
      view_.torn.push_back(fmt::format("step {}, {}: {}", said.at("step").get<std::uint64_t>(),
                                       name_, said.at("why").get<std::string>()));
    if (said.contains("error"))
      view_.failure =
          Error(ErrorCode::kRefused, fmt::format("{} could not go on: {}", name_, line));
    if (said.contains("result")) view_.outcome = said.at("result");
  } catch (const json::exception& error) {
    if (!view_.failure)
      view_.failure =
          Error(ErrorCode::kInternal, fmt::format("{} said '{}': {}", name_, line, error.what()));
  }
}

}  // namespace wsync::bench
