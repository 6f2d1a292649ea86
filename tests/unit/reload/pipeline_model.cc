#include "tests/unit/reload/pipeline_model.h"

#include <algorithm>
#include <utility>

#include "shared/base/check.h"

namespace wsync::reload {
namespace {

// Work is counted in nanoseconds times the contention, so that both speeds are whole numbers.
struct Operation {
  TimelineEntry entry;
  std::int64_t work = 0;
  std::int64_t speed = 1;
};

class Model {
 public:
  Model(WeightPipeline pipeline, const PipelineCosts& costs)
      : pipeline_(std::move(pipeline)), costs_(costs) {}

  Result<PredictedTimeline> run() {
    execute(pipeline_.step(Begin{}, now_));
    while (!running_.empty()) {
      advance();
      if (pipeline_.phase() == PipelinePhase::kFailed) return fail(pipeline_.error());
    }
    WSYNC_CHECK(pipeline_.phase() == PipelinePhase::kFinished,
                "nothing runs and the pipeline waits");
    return PredictedTimeline{
        .entries = std::move(entries_), .end = now_, .choice = pipeline_.choice()};
  }

 private:
  void execute(const std::vector<Command>& commands) {
    for (const Command& command : commands) std::visit([&](const auto& c) { begin(c); }, command);
  }
  void begin(const StartH2D& c) {
    start({.activity = Activity::kH2D, .device = c.device, .bucket = c.bucket}, costs_.h2d);
  }
  void begin(const StartBroadcast& c) {
    start(
        {.activity = Activity::kBroadcast, .device = c.source, .slot = c.slot, .bucket = c.bucket},
        costs_.broadcast);
  }
  void begin(const StartReload& c) {
    const TimelineEntry entry{.activity = Activity::kReload,
                              .device = c.device,
                              .slot = c.slot,
                              .engine = c.engine,
                              .bucket = c.bucket};
    if (engine_busy(c.engine))
      waiting_.push_back(entry);
    else
      start(entry, costs_.reload);
  }
  void start(TimelineEntry entry, std::chrono::nanoseconds cost) {
    entry.begin = now_;
    running_.push_back({.entry = entry, .work = cost.count() * costs_.contention});
  }
  [[nodiscard]] bool engine_busy(EngineId engine) const {
    return std::any_of(running_.begin(), running_.end(), [&](const Operation& o) {
      return o.entry.activity == Activity::kReload && o.entry.engine == engine;
    });
  }
  [[nodiscard]] bool runs(Activity activity) const {
    return std::any_of(running_.begin(), running_.end(),
                       [&](const Operation& o) { return o.entry.activity == activity; });
  }

  // Advances the clock to the first end, and reports everything that ends then to the pipeline.
  void advance() {
    const bool contended = runs(Activity::kH2D) && runs(Activity::kBroadcast);
    std::int64_t first = -1;
    for (Operation& o : running_) {
      const bool slowed = contended && o.entry.activity != Activity::kReload;
      o.speed = slowed ? 1 : costs_.contention;
      const std::int64_t left = (o.work + o.speed - 1) / o.speed;
      if (first < 0 || left < first) first = left;
    }
    now_ = now_ + std::chrono::nanoseconds(first);
    for (Operation& o : running_) o.work -= std::min(o.work, first * o.speed);
    std::vector<Operation> ended;
    std::erase_if(running_, [&](const Operation& o) {
      if (o.work == 0) ended.push_back(o);
      return o.work == 0;
    });
    for (Operation& o : ended) finish(o.entry);
  }

  void finish(TimelineEntry entry) {
    entry.end = now_;
    entries_.push_back(entry);
    switch (entry.activity) {
      case Activity::kH2D:
        execute(pipeline_.step(H2DDone{.device = entry.device, .bucket = entry.bucket}, now_));
        break;
      case Activity::kBroadcast:
        for (std::uint32_t d = 0; d < pipeline_.shape().devices; ++d)
          execute(pipeline_.step(BroadcastDone{.device = DeviceIndex{d}, .bucket = entry.bucket},
                                 now_));
        break;
      case Activity::kReload:
        start_next(entry.engine);
        execute(pipeline_.step(BucketAck{.engine = entry.engine, .bucket = entry.bucket}, now_));
        break;
    }
  }

  void start_next(EngineId engine) {
    const auto next = std::find_if(waiting_.begin(), waiting_.end(),
                                   [&](const TimelineEntry& e) { return e.engine == engine; });
    if (next == waiting_.end()) return;
    const TimelineEntry entry = *next;
    waiting_.erase(next);
    start(entry, costs_.reload);
  }

  WeightPipeline pipeline_;
  PipelineCosts costs_;
  TimePoint now_{0};
  std::vector<Operation> running_;
  std::vector<TimelineEntry> waiting_;  // reloads behind another one of their engine, in order
  std::vector<TimelineEntry> entries_;
};

}  // namespace

Result<PredictedTimeline> predict_timeline(const PipelineShape& shape, const StageChoice& choice,
                                           const PipelineCosts& costs) {
  if (costs.contention == 0)
    return fail(ErrorCode::kInvalidInput, "a contention of 0: expected 1 or more");
  auto pipeline = WSYNC_TRY(WeightPipeline::create(shape, choice));
  return Model(std::move(pipeline), costs).run();
}

}  // namespace wsync::reload
