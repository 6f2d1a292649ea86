#include "bench/scale/pipeline_flows.h"

#include <deque>
#include <map>
#include <utility>
#include <variant>

#include "shared/base/check.h"
#include "shared/base/format.h"

namespace wsync::bench {
namespace {

using reload::BroadcastDone;
using reload::BucketAck;
using reload::DeviceIndex;
using reload::EngineId;
using reload::H2DDone;
using reload::PipelinePhase;
using reload::StartBroadcast;
using reload::StartH2D;
using reload::StartReload;

class PipelineDriver {
 public:
  PipelineDriver(reload::WeightPipeline pipeline, const PipelineFlows& flows, SharedLinks links)
      : pipeline_(std::move(pipeline)), flows_(flows), links_(std::move(links)) {}

  Result<PipelinePrediction> run() {
    execute(pipeline_.step(reload::Begin{}, clock()));
    while (pipeline_.phase() == PipelinePhase::kRunning) {
      const auto ended = links_.advance();
      WSYNC_CHECK(!ended.empty(), "the pipeline waits, but no flow is active");
      for (const FlowId flow : ended) finish(flow);
    }
    if (pipeline_.phase() == PipelinePhase::kFailed) return fail(pipeline_.error());
    return PipelinePrediction{.prediction = {.seconds = links_.now_s(),
                                             .buckets = pipeline_.shape().buckets,
                                             .use = links_.use()},
                              .stages = pipeline_.choice().decided().value_or(Stages::kTwo)};
  }

 private:
  using Operation = std::variant<StartH2D, StartBroadcast, StartReload>;

  TimePoint clock() const { return TimePoint{static_cast<std::int64_t>(links_.now_s() * 1e9)}; }
  void execute(const std::vector<reload::Command>& commands) {
    for (const auto& command : commands) std::visit([&](const auto& c) { begin(c); }, command);
  }
  void begin(const StartH2D& c) {
    running_[links_.start(flows_.h2d(static_cast<std::uint32_t>(c.device), c.bucket))] = c;
  }
  void begin(const StartBroadcast& c) { running_[links_.start(flows_.broadcast(c.bucket))] = c; }
  void begin(const StartReload& c) {
    auto& queue = engines_[c.engine];
    queue.push_back(c);
    if (queue.size() == 1) start(c);
  }
  void start(const StartReload& c) {
    running_[links_.start(flows_.reload(number(c.engine), c.bucket))] = c;
  }
  void finish(FlowId flow) {
    const auto at = running_.find(flow);
    const Operation operation = at->second;
    running_.erase(at);
    std::visit([&](const auto& o) { done(o); }, operation);
  }
  void done(const StartH2D& o) {
    execute(pipeline_.step(H2DDone{.device = o.device, .bucket = o.bucket}, clock()));
  }
  void done(const StartBroadcast& o) {
    for (std::uint32_t d = 0; d < pipeline_.shape().devices; ++d)
      execute(pipeline_.step(BroadcastDone{.device = DeviceIndex{d}, .bucket = o.bucket}, clock()));
  }
  void done(const StartReload& o) {
    auto& queue = engines_[o.engine];
    queue.pop_front();
    if (!queue.empty()) start(queue.front());
    execute(pipeline_.step(BucketAck{.engine = o.engine, .bucket = o.bucket}, clock()));
  }

  reload::WeightPipeline pipeline_;
  const PipelineFlows& flows_;
  SharedLinks links_;
  std::map<FlowId, Operation> running_;
  std::map<EngineId, std::deque<StartReload>> engines_;  // the first reload of each is active
};

// The links of one host, and the load of a bucket on them.
struct HostLinks {
  SharedLinks links;
  std::vector<LinkId> pcie;
  std::vector<LinkId> switches;
  LinkId memory{};
  LinkId turns{};
  std::vector<Demand> broadcast;  // links of one broadcast
  double broadcast_speed = 0;     // speed of a broadcast alone
};

HostLinks make_links(const HostType& host) {
  HostLinks made;
  for (std::uint32_t g = 0; g < host.gpus; ++g)
    made.pcie.push_back(made.links.add(fmt::format("PCIe of GPU {}", g), host.pcie));
  for (std::uint32_t s = 0; s < host.gpus / host.gpus_per_switch; ++s)
    made.switches.push_back(made.links.add(fmt::format("PCIe switch {}", s), host.pcie));
  made.memory = made.links.add("host memory", host.host_memory);
  if (host.nvlink > 0) {
    made.broadcast = {{.link = made.links.add("NVLink", host.nvlink)}};
    made.broadcast_speed = host.nvlink;
  } else {
    // A ring over PCIe: every byte enters every GPU once and passes each switch once.
    for (const LinkId link : made.pcie) made.broadcast.push_back({.link = link});
    for (const LinkId link : made.switches) made.broadcast.push_back({.link = link});
    made.broadcast_speed = host.pcie;
  }
  made.turns = made.links.add("turns on the GPU", 1);
  made.broadcast.push_back({.link = made.turns, .share = 1 / made.broadcast_speed});
  return made;
}

}  // namespace

Result<PipelinePrediction> simulate_pipeline(const reload::PipelineShape& shape, Stages stages,
                                             const PipelineFlows& flows, SharedLinks links) {
  auto pipeline =
      WSYNC_TRY(reload::WeightPipeline::create(shape, reload::StageChoice(stages, shape.devices)));
  return PipelineDriver(std::move(pipeline), flows, std::move(links)).run();
}

Result<PipelinePrediction> simulate_switch(std::uint64_t model_bytes, const Cluster& cluster,
                                           const SwitchOptions& options) {
  WSYNC_TRY(check_cluster(cluster));
  if (options.buffer_bytes == 0)
    return fail(ErrorCode::kInvalidInput, "a buffer of 0 bytes: expected at least one byte");
  const HostType& host = cluster.host;
  const std::uint64_t here =
      (model_bytes + cluster.hosts_per_replica() - 1) / cluster.hosts_per_replica();
  HostLinks links = make_links(host);
  const auto bytes_of = [&](std::uint64_t bucket) {
    return static_cast<double>(
        std::min(options.buffer_bytes, here - bucket * options.buffer_bytes));
  };
  const double part = 1.0 / std::min(cluster.gpus_per_replica, host.gpus);
  const PipelineFlows flows{
      .h2d =
          [&](std::uint32_t device, std::uint64_t bucket) {
            return Flow{.fixed_s = 0,
                        .work = bytes_of(bucket),
                        .demands = {{.link = links.pcie[device]},
                                    {.link = links.switches[device / host.gpus_per_switch]},
                                    {.link = links.memory}}};
          },
      .broadcast =
          [&](std::uint64_t bucket) {
            return Flow{.fixed_s = bytes_of(bucket) / host.gpu_memory,  // computing the digest
                        .work = bytes_of(bucket),
                        .demands = links.broadcast};
          },
      .reload =
          [&](std::uint32_t, std::uint64_t bucket) {
            return Flow{.fixed_s = kBucketAnswerSeconds,
                        .work = 2 * part * bytes_of(bucket) / host.gpu_memory,
                        .demands = {{.link = links.turns}}};
          }};
  // All engines do the same at the same time, so one engine represents all.
  const reload::PipelineShape shape{
      .devices = host.gpus,
      .buckets = (here + options.buffer_bytes - 1) / options.buffer_bytes,
      .ipc_slots = 2,
      .engines = {{.engine = EngineId{0}, .device = DeviceIndex{0}}}};
  auto made = simulate_pipeline(shape, options.stages, flows, std::move(links.links));
  if (made)  // not a link: the work in turns on the GPU is counted separately
    std::erase_if(made->prediction.use,
                  [](const LinkUse& use) { return use.name.starts_with("turns"); });
  return made;
}

}  // namespace wsync::bench
