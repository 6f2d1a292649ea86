// An engine on a GPU that borrows and answers later gets its layers one by one, and reports when it
// has used the last one. A load that is given up at any point before must not leave it waiting:
// nothing else could be loaded then. Over the emulated driver (tests/emulated_cuda).
#include <algorithm>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>
#include <wsync/engine.h>

#include "tests/contract/engine_link/gpu_rank.h"

namespace wsync::engine::test {
namespace {

using control::TakeMode;
using testing::HasSubstr;

// If it borrows, it reports only when it has every layer (the test does that), or is told that no
// further one comes.
struct WaitingRank : GpuRank {
  explicit WaitingRank(const Model& from, TakeMode take = TakeMode::kBorrow)
      : GpuRank(from, 0, 1, take) {
    for (std::uint32_t layer = 0; layer < 5 && take == TakeMode::kBorrow; ++layer)
      engine.late_layers.insert(layer);
    engine.on_given_up = [this](const Version& version) {
      link->report_loaded(version, fail(ErrorCode::kRefused, "it was given up"));
    };
  }
  [[nodiscard]] bool is_late() const { return !engine.late_layers.empty(); }
  void prepare_for(Version version) {
    EXPECT_EQ(peer.ask<control::Prepared>(prepare(version)).failure, "");
  }
  // Of what the engine was called for, before the load of kSecond began.
  [[nodiscard]] std::int64_t calls_of_first(std::string_view beginning) const {
    const std::vector<std::string> calls = engine.calls_until_now();
    const auto end = std::ranges::find(calls, "begin 1.2");
    return std::count_if(calls.begin(), end,
                         [&](const std::string& call) { return call.starts_with(beginning); });
  }
};

enum class Way : std::uint8_t { kLoss, kOtherLoad, kAbort };

// How the load is given up, whether the buffers are kept or come with each load, and how the engine
// takes it.
struct GivenUpOnGpu : testing::TestWithParam<std::tuple<Way, bool, TakeMode>> {
  void attach(WaitingRank& rank) {
    rank.peer.accept();
    if (std::get<bool>(GetParam()))
      rank.peer.send(rank.welcome(sidecar.handles()), sidecar.fds());
    else
      rank.peer.send(rank.welcome({}));
  }
  void send_load(WaitingRank& rank, Version version) {
    if (std::get<bool>(GetParam()))
      rank.peer.send(control::Load{.version = version});
    else
      rank.peer.send(control::Load{.version = version, .buffers = sidecar.handles()},
                     sidecar.fds());
  }
  // All but `taken` buckets of the first version are missing, and the one after them is announced
  // but not acknowledged yet if it `is_under_way`. Then the second version is loaded.
  void give_up(WaitingRank& rank, std::uint64_t taken, bool is_under_way) {
    const Way way = std::get<Way>(GetParam());
    rank.engine.calls.clear();
    rank.prepare_for(kFirst);
    rank.prepare_for(kSecond);
    send_load(rank, kFirst);
    const std::uint64_t load = rank.peer.envelope.request;
    for (std::uint64_t bucket = 0; bucket < taken; ++bucket)
      ASSERT_EQ(rank.give(sidecar, first, bucket).failure, "");
    if (is_under_way) {
      const auto slot = static_cast<std::uint32_t>(taken % 2);
      sidecar.put(slot, first.data().subspan(model.plan.bucket_offset(taken),
                                             model.plan.bucket_size(taken)));
      rank.peer.send(control::BucketReady{.bucket = taken, .slot = slot});
    }
    if (way == Way::kAbort) rank.peer.send(control::Abort{.version = kFirst});
    if (way == Way::kLoss) {
      rank.peer.hang_up();
      attach(rank);
      rank.prepare_for(kSecond);
    }
    if (way == Way::kOtherLoad) send_load(rank, kSecond);
    if (is_under_way && way != Way::kLoss) {
      ASSERT_EQ(rank.peer.expect<control::BucketAck>().failure, "");
    }
    const bool has_ended = !rank.is_late() && way != Way::kLoss &&
                           taken + (is_under_way ? 1 : 0) == model.plan.bucket_count();
    if (has_ended) {
      EXPECT_EQ(rank.peer.expect<control::Loaded>().failure, "");
      EXPECT_EQ(rank.peer.last_envelope.request, load);
    } else if (way == Way::kAbort) {
      EXPECT_THAT(rank.peer.expect<control::Loaded>().failure, HasSubstr("cancelled"));
      EXPECT_EQ(rank.peer.last_envelope.request, load);
    }
    if (way != Way::kOtherLoad) send_load(rank, kSecond);
    rank.peer.ask<control::Pong>(control::Ping{});
    if (rank.is_late() && rank.calls_of_first("layer ") == kLayers) {
      EXPECT_EQ(std::ranges::count(rank.engine.calls_until_now(), "begin 1.2"), 0)
          << "it is still read";
      EXPECT_TRUE(rank.engine.copy_borrowed());
      rank.link->report_loaded(kFirst, {});
    }
  }
  void expect_second(WaitingRank& rank) {
    for (std::uint64_t bucket = 0; bucket < model.plan.bucket_count(); ++bucket) {
      EXPECT_EQ(rank.give(sidecar, second, bucket).failure, "");
      if (HasFailure()) return;
    }
    if (rank.is_late()) rank.link->report_loaded(kSecond, {});
    ASSERT_EQ(rank.peer.expect<control::Loaded>().failure, "");
    rank.commit(kSecond);
    rank.expect_holds(second);
    const std::int64_t layers = rank.calls_of_first("layer ");
    const bool waited = rank.is_late() && layers > 0 && layers < kLayers;
    EXPECT_EQ(rank.calls_of_first("given up 1.1"), waited ? 1 : 0)
        << "after " << layers << " layers";
    EXPECT_EQ(std::ranges::count(rank.engine.calls_until_now(), "given up 1.2"), 0);
  }

  static constexpr std::int64_t kLayers = 3;
  Model model = wide_layers(2);
  SharedArena first = model.arena(kFirst);
  SharedArena second = model.arena(kSecond);
  GpuSidecar sidecar{model.plan.largest_bucket()};
};
INSTANTIATE_TEST_SUITE_P(
    Engine, GivenUpOnGpu,
    testing::Combine(testing::Values(Way::kLoss, Way::kOtherLoad, Way::kAbort), testing::Bool(),
                     testing::Values(TakeMode::kPieces, TakeMode::kWhole, TakeMode::kBorrow)),
    [](const auto& one) {
      const Way way = std::get<Way>(one.param);
      const std::string name = way == Way::kLoss        ? "ByTheLossOfTheSidecar"
                               : way == Way::kOtherLoad ? "ByAnotherLoad"
                                                        : "ByAnAbort";
      const TakeMode take = std::get<TakeMode>(one.param);
      return name + (std::get<bool>(one.param) ? "OfKeptBuffers" : "OfBuffersOfTheLoad") +
             (take == TakeMode::kPieces  ? "Pieces"
              : take == TakeMode::kWhole ? "Whole"
                                         : "Borrow");
    });

TEST_P(GivenUpOnGpu, TheNextLoadBringsItsVersionFromEveryPoint) {
  WaitingRank rank(model, std::get<TakeMode>(GetParam()));
  rank.start();
  attach(rank);
  ASSERT_GE(model.plan.bucket_count(), 4U);
  std::optional<std::uint64_t> free;
  for (std::uint64_t taken = 0; taken <= model.plan.bucket_count(); ++taken)
    for (const bool is_under_way : {false, true}) {
      const bool is_last = taken == model.plan.bucket_count();
      if (is_under_way && is_last) continue;
      // The library awaits nothing of an engine that answers at once.
      if (!rank.is_late() && !is_under_way && !is_last) continue;
      SCOPED_TRACE(fmt::format("after {} buckets{}", taken,
                               is_under_way ? ", the next one is under way" : ""));
      give_up(rank, taken, is_under_way);
      if (HasFailure()) return;
      expect_second(rank);
      if (HasFailure()) return;
      if (free) {
        EXPECT_EQ(rank.free_bytes(), *free) << "memory of the first load is kept";
      }
      free = rank.free_bytes();
    }
}

// The engine has answered layer 0 later, and fails at layer 1.
TEST(GivenUpOnGpuRules, NoLayerComesAfterOneThatFails) {
  const Model model = wide_layers();
  GpuSidecar sidecar(model.plan.largest_bucket());
  WaitingRank rank(model);
  rank.engine.fail_layer = 1;
  rank.start();
  rank.peer.accept();
  rank.peer.send(rank.welcome(sidecar.handles()), sidecar.fds());
  const SharedArena arena = model.arena(kFirst);
  rank.prepare_for(kFirst);
  rank.peer.send(control::Load{.version = kFirst});
  std::uint64_t bucket = 0;
  while (rank.give(sidecar, arena, bucket).failure.empty()) ++bucket;
  EXPECT_THAT(rank.peer.expect<control::Loaded>().failure, HasSubstr("no room for this layer"));
  EXPECT_EQ(rank.calls_of_first("given up 1.1"), 1);
  rank.engine.fail_layer = UINT32_MAX;
  rank.engine.late_layers.clear();
  rank.load(sidecar, arena, kFirst);
  rank.commit(kFirst);
  rank.expect_holds(arena);
}

// A second load of the engine's is not begun before it has reported, however long it takes.
TEST(GivenUpOnGpuRules, TheBytesStayUntilTheEngineHasReported) {
  const Model model = wide_layers();
  GpuSidecar sidecar(model.plan.largest_bucket());
  WaitingRank rank(model);
  rank.engine.on_given_up = nullptr;  // a thread of it still reads
  rank.start();
  rank.peer.accept();
  rank.peer.send(rank.welcome(sidecar.handles()), sidecar.fds());
  const SharedArena first = model.arena(kFirst);
  const SharedArena second = model.arena(kSecond);
  rank.prepare_for(kFirst);
  rank.prepare_for(kSecond);
  rank.peer.send(control::Load{.version = kFirst});
  for (const std::uint64_t bucket : {0U, 1U, 2U})
    EXPECT_EQ(rank.give(sidecar, first, bucket).failure, "");
  rank.peer.send(control::Abort{.version = kFirst});
  EXPECT_THAT(rank.peer.expect<control::Loaded>().failure, HasSubstr("cancelled"));
  rank.peer.send(control::Load{.version = kSecond});
  rank.peer.ask<control::Pong>(control::Ping{});
  EXPECT_EQ(rank.calls_of_first("given up 1.1"), 1) << "it is told once";
  EXPECT_EQ(std::ranges::count(rank.engine.calls_until_now(), "begin 1.2"), 0);
  std::vector<std::byte> layer;
  ASSERT_TRUE(rank.engine.copy_out(rank.engine.adopted[0], layer));
  EXPECT_EQ(tensor_digest(seed_of("model.layers.0.a"), layer),
            reload::expected_digest(plan_of(model, rank.engine).tensors()[0], first.data()));
  rank.engine.late_layers.clear();
  rank.link->report_loaded(kFirst, fail(ErrorCode::kRefused, "it was given up"));
  for (std::uint64_t bucket = 0; bucket < model.plan.bucket_count(); ++bucket)
    EXPECT_EQ(rank.give(sidecar, second, bucket).failure, "");
  EXPECT_EQ(rank.peer.expect<control::Loaded>().failure, "");
  rank.commit(kSecond);
  rank.expect_holds(second);
}

// ---- the C API ----

struct CBorrower {
  CBorrower(const Model& model, const std::string& path, bool has_callback) {
    wsync_engine_options options{};
    options.socket_path = path.c_str();
    options.replica = "r0";
    options.world_size = 1;
    options.leader = 1;
    options.take = WSYNC_TAKE_BORROW;
    options.user = this;
    options.weights_on = WSYNC_DEVICE_CUDA;
    options.callbacks.pause = [](void*, const wsync_pause*) { return 0; };
    options.callbacks.load_layer = [](void*, wsync_version, std::uint32_t,
                                      const wsync_layer_tensor*,
                                      std::size_t) -> int { return WSYNC_LATER; };
    options.callbacks.commit = [](void*, wsync_version) { return 0; };
    options.callbacks.resume = [](void*) { return 0; };
    if (has_callback)
      options.callbacks.load_given_up = [](void* user, wsync_version version) {
        auto* const self = static_cast<CBorrower*>(user);
        self->given_up.emplace_back(version.epoch, version.step);
        wsync_engine_fail(self->engine, "the rest of it does not come");
        wsync_engine_report_loaded(self->engine, version, 1);
      };
    engine = wsync_engine_create(&options);
    for (const TensorInfo& info : model.manifest.tensors()) {
      const std::string dtype(dtype_name(info.dtype));
      wsync_tensor tensor{};
      tensor.name = info.name.c_str();
      tensor.dtype = dtype.c_str();
      tensor.shape = info.shape.data();
      tensor.shape_count = info.shape.size();
      EXPECT_EQ(wsync_engine_add_tensor(engine, &tensor), 0) << wsync_engine_error(engine);
    }
    EXPECT_EQ(wsync_engine_attach(engine), 0) << wsync_engine_error(engine);
    EXPECT_EQ(wsync_engine_start(engine), 0) << wsync_engine_error(engine);
  }
  ~CBorrower() { wsync_engine_destroy(engine); }
  CBorrower(const CBorrower&) = delete;
  CBorrower& operator=(const CBorrower&) = delete;

  wsync_engine* engine = nullptr;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> given_up;  // of the link's thread
};

TEST(GivenUpOnGpuRules, TheCApiTellsItAndRefusesAnEngineThatCannotBeTold) {
  const Model model = wide_layers();
  for (const bool has_callback : {true, false}) {
    GpuSidecar sidecar(model.plan.largest_bucket());
    const GpuRank wire(model, 0, 1, TakeMode::kBorrow);  // for its messages only
    SidecarPeer peer;
    CBorrower borrower(model, peer.path(), has_callback);
    peer.accept();
    peer.send(wire.welcome(sidecar.handles()), sidecar.fds());
    const SharedArena arena = model.arena(kFirst);
    EXPECT_EQ(peer.ask<control::Prepared>(wire.prepare(kFirst)).failure, "");
    peer.send(control::Load{.version = kFirst});
    std::string failure;
    for (std::uint64_t bucket = 0; bucket < 3 && failure.empty(); ++bucket) {
      const auto slot = static_cast<std::uint32_t>(bucket % 2);
      sidecar.put(slot, arena.data().subspan(model.plan.bucket_offset(bucket),
                                             model.plan.bucket_size(bucket)));
      failure = peer.ask<control::BucketAck>(control::BucketReady{.bucket = bucket, .slot = slot})
                    .failure;
    }
    if (!has_callback) {
      EXPECT_THAT(failure, HasSubstr("needs the callback load_given_up"));
      EXPECT_THAT(peer.expect<control::Loaded>().failure,
                  HasSubstr("needs the callback load_given_up"));
      continue;
    }
    EXPECT_EQ(failure, "");
    peer.send(control::Abort{.version = kFirst});
    EXPECT_THAT(peer.expect<control::Loaded>().failure, HasSubstr("cancelled"));
    peer.ask<control::Pong>(control::Ping{});
    EXPECT_THAT(borrower.given_up, testing::ElementsAre(testing::Pair(1U, 1U)));
    EXPECT_EQ(wsync_engine_suspend(borrower.engine), 0)
        << "its report is handled: " << wsync_engine_error(borrower.engine);
  }
}

}  // namespace
}  // namespace wsync::engine::test
