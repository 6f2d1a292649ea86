#include "trainer_side/publish/stand_by.h"

#include <utility>

#include "shared/base/format.h"
#include "shared/base/log.h"
#include "trainer_side/publish/fleet_coordinator.h"

namespace wsync::publish {

Result<std::unique_ptr<StandBy>> StandBy::create(Loop& loop, const config::TrainerConfig& config,
                                                 std::function<void(Result<>)> on_end) {
  WSYNC_TRY(make_fleet_folders(config));
  auto made = std::unique_ptr<StandBy>(new StandBy(loop));
  made->opened_ = WSYNC_TRY(CoordinatorAgent::open_store(loop, config));
  WSYNC_TRY(made->show(loop, config));
  const auto outcome = std::make_shared<Result<>>();
  StandBy* self = made.get();
  const auto wait = [&loop, self, alive = self->alive_, outcome] {
    *outcome = self->opened_.store->stand_by([&loop, self, alive](const std::string& what) {
      log_info("stands by: {}", what);
      loop.post([self, alive, what] {
        if (*alive) self->waits_for_ = "this coordinator stands by: " + what;
      });
    });
  };
  WSYNC_TRY(
      self->worker_.submit(wait, [self, alive = self->alive_, outcome, on_end = std::move(on_end)] {
        if (!*alive) return;
        self->opened_.leads = outcome->has_value();
        on_end(*outcome);
      }));
  return made;
}

Result<> StandBy::show(Loop& loop, const config::TrainerConfig& config) {
  if (config.http.address.empty()) return {};
  auto pages = metrics::StatusPages::create(
      loop,
      {.address = config.http.address,
       .role = "coordinator",
       .token = config.http.token,
       .open = config.http.open_paths()},
      registry_,
      {.readings = [] { return std::vector<metrics::Reading>(); },
       .readiness = [this] { return metrics::Readiness{.ready = false, .reason = waits_for_}; }});
  // The coordinator that leads may be on this host, at the same address.
  if (!pages && pages.error().code() == ErrorCode::kBusy) {
    log_info("/healthz and /readyz are not served while this coordinator stands by: {}",
             pages.error().message());
    return {};
  }
  pages_ = WSYNC_TRY(std::move(pages));
  return {};
}

StandBy::~StandBy() {
  *alive_ = false;
  pages_.reset();
  if (opened_.store) opened_.store->cancel();
  worker_.stop();
}

OpenedStore StandBy::take() {
  pages_.reset();
  return std::exchange(opened_, {});
}

}  // namespace wsync::publish
