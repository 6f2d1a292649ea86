#include "trainer_side/publish/key_watch.h"

#include <utility>

#include "shared/base/format.h"
#include "shared/base/log.h"
#include "trainer_side/coordinator/permissions.h"

namespace wsync::publish {
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
  callbacks.on_refused = [this](const std::string& who, const Error& error) {
    refusals_.add(fmt::format("{} was refused: {}", who, error.message()));
  };
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

}  // namespace wsync::publish
