// Host devices, each of which takes what its rank needs by its own link.
#include <algorithm>
#include <gtest/gtest.h>
#include <map>
#include <set>

#include "inference_side/reload/pipeline_runner.h"
#include "shared/base/units.h"
#include "tests/unit/reload/random_model.h"

namespace wsync::reload {
namespace {

constexpr std::uint32_t kDevices = 4;

// A model of two matrices that ranks share by columns.
struct Model {
  Model()
      : manifest(Manifest::create({info("a", {2048, 1024}), info("b", {1500, 1536})}).value()),
        buckets(BucketPlan::create(manifest, limits::kBucketBytesMin).value()),
        arena(buckets.arena_bytes()) {
    std::mt19937_64 random(7);
    fill_random(random, arena);
    for (std::uint32_t rank = 0; rank < kDevices; ++rank) {
      std::vector<control::EngineTensor> tensors;
      for (const TensorInfo& tensor : manifest.tensors()) {
        const std::uint64_t part = tensor.shape[1] / kDevices;
        tensors.push_back(wanted(tensor, {{.dim = 1, .begin = rank * part, .length = part}}));
      }
      plans.push_back(LoadPlan::make(manifest, buckets, tensors).value());
      needed.push_back(std::make_shared<const NeededBytes>(NeededBytes::of(plans.back())));
    }
  }
  Manifest manifest;
  BucketPlan buckets;
  std::vector<std::byte> arena;
  std::vector<LoadPlan> plans;
  std::vector<std::shared_ptr<const NeededBytes>> needed;
};

std::unique_ptr<PipelineRunner> make_runner(std::uint32_t devices, Transfer transfer,
                                            trace::Recorder* recorder = nullptr) {
  PipelineOptions options{.devices = {},
                          .buffer_bytes = limits::kBucketBytesMin,
                          .trace = recorder,
                          .transfer = transfer};
  for (std::uint32_t d = 0; d < devices; ++d)
    options.devices.push_back(
        std::move(*device::make_device({.kind = DeviceKind::kSeparate, .index = DeviceIndex{d}})));
  return std::move(PipelineRunner::create(std::move(options)).value());
}

// Ranks that copy a bucket as soon as they are told of it.
class Ranks final : public PipelineListener {
 public:
  Ranks(PipelineRunner& runner, const Model& model) : runner_(runner), model_(model) {
    for (std::uint32_t d = 0; d < runner.group().size(); ++d) {
      for (std::uint32_t slot = 0; slot < kIpcSlots; ++slot) {
        auto importer = device::make_device({.kind = DeviceKind::kSeparate}).value();
        buffers_[{d, slot}] =
            importer
                ->import_memory(runner.group().ipc_handle(DeviceIndex{d}, SlotIndex{slot}).value())
                .value();
      }
      add_rank(d);
    }
  }
  void add_rank(std::uint32_t rank) {
    for (const LoadTensor& tensor : model_.plans[rank].tensors())
      held_[rank].emplace_back(tensor.shard.bytes());
  }
  void on_bucket_ready(const BucketReady& ready) override {
    const std::uint32_t rank = number(ready.engine);
    if (lost.contains(rank)) return runner_.engine_lost(ready.engine, {ErrorCode::kPeerLost, "x"});
    const LoadPlan& plan = model_.plans[rank];
    const auto bucket = buffers_[{index_of(ready.device), index_of(ready.slot)}]->host_view();
    for (std::size_t i = plan.first_group(ready.bucket); i < plan.first_group(ready.bucket + 1);
         ++i)
      (void)plan.execute(plan.groups()[i], bucket.first(ready.bytes),
                         held_[rank][plan.groups()[i].tensor], scratch_);
    runner_.handle_bucket_ack(ready.engine, ready.bucket);
  }
  void on_engine_dropped(const LostEngine&) override {}
  void on_finished(const Result<PipelineReport>&) override {}

  void expect_all(std::uint32_t rank) {
    const LoadPlan& plan = model_.plans[rank];
    std::vector<std::vector<std::byte>> expected;
    for (const LoadTensor& tensor : plan.tensors()) expected.emplace_back(tensor.shard.bytes());
    for (const CopyGroup& group : plan.groups())
      (void)plan.execute(group, plan.bucket_of(model_.arena, group.bucket), expected[group.tensor],
                         scratch_);
    EXPECT_TRUE(held_[rank] == expected) << "rank " << rank;
  }
  std::set<std::uint32_t> lost;

 private:
  PipelineRunner& runner_;
  const Model& model_;
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::unique_ptr<device::Memory>> buffers_;
  std::map<std::uint32_t, std::vector<std::vector<std::byte>>> held_;
  CopyScratch scratch_;
};

PipelineJob job_of(const Model& model, std::uint32_t devices = kDevices) {
  PipelineJob job{.buckets = model.buckets.bucket_count(),
                  .bucket_bytes = [&model](std::uint64_t b) -> Result<std::span<const std::byte>> {
                    return model.plans[0].bucket_of(model.arena, b);
                  },
                  .engines = {},
                  .version_bytes = model.manifest.total_bytes(),
                  .deadline = now() + std::chrono::seconds(60)};
  for (std::uint32_t d = 0; d < devices; ++d) {
    job.engines.push_back({.engine = EngineId{d}, .device = DeviceIndex{d}});
    job.needed.push_back({model.needed[d]});
  }
  return job;
}

TEST(OwnLinksRun, EachRankGetsItsPartAndNothingIsBroadcast) {
  const Model model;
  auto runner = make_runner(kDevices, Transfer::kAuto);
  for (std::uint64_t run = 1; run <= 2; ++run) {
    Ranks ranks(*runner, model);
    ASSERT_TRUE(runner->start(job_of(model), ranks));
    const auto report = runner->wait();
    ASSERT_TRUE(report.has_value()) << report.error().message();
    EXPECT_TRUE(report->own_links);
    EXPECT_EQ(report->bytes, model.arena.size()) << "of one model";
    for (std::uint32_t rank = 0; rank < kDevices; ++rank) ranks.expect_all(rank);
    EXPECT_EQ(runner->copies().h2d_bytes, run * model.manifest.total_bytes());
    EXPECT_EQ(runner->copies().broadcast_bytes, 0U);
  }
}

TEST(OwnLinksRun, ADeviceThatIsAloneCopiesOnlyWhatItsRankNeeds) {
  const Model model;
  auto runner = make_runner(1, Transfer::kAuto);
  Ranks ranks(*runner, model);
  ASSERT_TRUE(runner->start(job_of(model, 1), ranks));
  const auto report = runner->wait();
  ASSERT_TRUE(report.has_value()) << report.error().message();
  ranks.expect_all(0);
  EXPECT_EQ(runner->copies().h2d_bytes, model.manifest.total_bytes() / kDevices);
}

TEST(OwnLinksRun, TheConfigurationChoosesTheForm) {
  const Model model;
  auto runner = make_runner(kDevices, Transfer::kBroadcast);
  Ranks ranks(*runner, model);
  ASSERT_TRUE(runner->start(job_of(model), ranks));
  const auto report = runner->wait();
  ASSERT_TRUE(report.has_value()) << report.error().message();
  EXPECT_FALSE(report->own_links);
  for (std::uint32_t rank = 0; rank < kDevices; ++rank) ranks.expect_all(rank);
  EXPECT_EQ(runner->copies().broadcast_bytes, kDevices * model.arena.size());
}

TEST(OwnLinksRun, SpansTellOfEachDevice) {
  const Model model;
  trace::Recorder recorder;
  auto runner = make_runner(kDevices, Transfer::kOwnLinks, &recorder);
  Ranks ranks(*runner, model);
  ASSERT_TRUE(runner->start(job_of(model), ranks));
  const auto report = runner->wait();
  ASSERT_TRUE(report.has_value()) << report.error().message();
  std::map<std::string, std::uint64_t> spans;
  for (const trace::Span& span : recorder.spans()) {
    ++spans[span.lane];
    EXPECT_GE(span.begin, report->begin) << span.name;
    EXPECT_LE(span.begin, span.end) << span.name;
    EXPECT_LE(span.end, report->end) << span.name;
    for (const trace::Arg& arg : span.args)
      if (arg.name == "bytes") {
        EXPECT_GT(std::get<std::int64_t>(arg.value), 0) << span.lane << ": " << span.name;
      }
  }
  const std::uint64_t buckets = model.buckets.bucket_count();
  for (std::uint32_t d = 0; d < kDevices; ++d) {
    EXPECT_EQ(spans["H2D " + std::to_string(d)], buckets);
    EXPECT_EQ(spans["engine " + std::to_string(d)], buckets);
  }
  EXPECT_GT(spans["IPC 0"], 0U);
  EXPECT_GT(spans["IPC 1"], 0U);
}

TEST(OwnLinksRun, BothFormsTakeTurns) {
  const Model model;
  auto runner = make_runner(kDevices, Transfer::kAuto);
  for (int run = 0; run < 4; ++run) {
    Ranks ranks(*runner, model);
    auto job = job_of(model);
    if (run % 2 == 0) job.needed.clear();
    ASSERT_TRUE(runner->start(std::move(job), ranks));
    const auto report = runner->wait();
    ASSERT_TRUE(report.has_value()) << report.error().message();
    EXPECT_EQ(report->own_links, run % 2 == 1);
    for (std::uint32_t rank = 0; rank < kDevices; ++rank) ranks.expect_all(rank);
  }
}

TEST(OwnLinksRun, RanksOfTwoReplicasOnOneDeviceGetWhatEachNeeds) {
  const Model model;
  auto runner = make_runner(1, Transfer::kOwnLinks);
  Ranks ranks(*runner, model);
  ranks.add_rank(1);
  auto job = job_of(model, 1);
  job.engines.push_back({.engine = EngineId{1}, .device = DeviceIndex{0}});
  job.needed[0].push_back(model.needed[1]);
  ASSERT_TRUE(runner->start(std::move(job), ranks));
  const auto report = runner->wait();
  ASSERT_TRUE(report.has_value()) << report.error().message();
  ranks.expect_all(0);
  ranks.expect_all(1);
}

TEST(OwnLinksRun, ALostRankHoldsUpNobody) {
  const Model model;
  auto runner = make_runner(kDevices, Transfer::kOwnLinks);
  Ranks ranks(*runner, model);
  ranks.lost = {2};
  ASSERT_TRUE(runner->start(job_of(model), ranks));
  const auto report = runner->wait();
  ASSERT_TRUE(report.has_value()) << report.error().message();
  ASSERT_EQ(report->lost.size(), 1U);
  for (const std::uint32_t rank : {0U, 1U, 3U}) ranks.expect_all(rank);
  ranks.lost = {0, 1, 2, 3};
  ASSERT_TRUE(runner->start(job_of(model), ranks));
  EXPECT_EQ(runner->wait().error().code(), ErrorCode::kPeerLost);
}

TEST(OwnLinksRun, NeedsThatDoNotFitTheGroupOrTheVersionAreRefused) {
  const Model model;
  auto runner = make_runner(kDevices, Transfer::kAuto);
  Ranks ranks(*runner, model);
  auto few = job_of(model);
  few.needed.pop_back();
  EXPECT_EQ(runner->start(std::move(few), ranks).error().message(),
            "what 3 devices need was given for a group of 4");
  auto other = job_of(model);
  ++other.buckets;
  EXPECT_EQ(runner->start(std::move(other), ranks).error().code(), ErrorCode::kInvalidInput);
}

}  // namespace
}  // namespace wsync::reload
