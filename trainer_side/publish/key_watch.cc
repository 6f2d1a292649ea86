#include "trainer_side/publish/key_watch.h"

#include <chrono>
#include <utility>

#include "shared/base/format.h"
#include "shared/base/log.h"
#include "trainer_side/coordinator/permissions.h"

namespace wsync::publish {
namespace {

// Who is refused tries again every few seconds, for as long as it lives; an attacker can have
// another key each time.
constexpr std::chrono::seconds kSayAgainAfter{60};
constexpr std::size_t kSaidMax = 20;  // in that time

}  // namespace

Result<std::unique_ptr<KeyWatch>> KeyWatch::create(const std::string& folder) {
  auto opened = control::KeyFolder::open(folder);
  if (!opened) return fail(opened.error().with_context("keys"));
  auto listed = opened->authorized();
  if (!listed) return fail(listed.error().with_context("keys"));
  log_info("the control port has keys: {} listed in {}", counted(listed->size(), "key"), folder);
  return std::unique_ptr<KeyWatch>(new KeyWatch(std::move(*opened), std::move(*listed)));
}

control::RouterKeys KeyWatch::router_keys() const {
  return {.secret_key = folder_.coordinator().pair.secret_key, .admitted = listed_};
}

void KeyWatch::guard(control::RouterCallbacks& callbacks) {
  callbacks.why_refused = coordinator::why_not_permitted;
  callbacks.on_refused = [this](const std::string& who, const Error& error) { say(who, error); };
}

void KeyWatch::follow_hangups(Loop& loop, control::RouterPort& port) {
  auto hangups = HangupSignal::create(loop, [this, &port] { read_again(port); });
  if (!hangups)
    return log_warning("keys: {}, so this coordinator reads its folder of keys at its start only",
                       hangups.error().message());
  hangups_ = std::move(*hangups);
}

void KeyWatch::read_again(control::RouterPort& port) {
  auto listed = folder_.authorized();
  if (!listed)
    return log_error("keys: {}; the keys that were listed before stay admitted",
                     listed.error().message());
  log_info("keys: {} listed in {}", counted(listed->size(), "key"), folder_.path().string());
  port.admit(std::move(*listed));
}

void KeyWatch::say(const std::string& who, const Error& error) {
  if (said_.empty() || now() - said_from_ >= kSayAgainAfter) {
    if (unsaid_ != 0) log_warning("{} more were not logged", counted(unsaid_, "refusal"));
    said_.clear();
    said_from_ = now();
    unsaid_ = 0;
  }
  const std::string text = fmt::format("{} was refused: {}", who, error.message());
  if (said_.size() < kSaidMax && said_.insert(text).second)
    log_warning("{}", text);
  else
    ++unsaid_;
}

}  // namespace wsync::publish
