// When device buffers may be allocated, handed to engines and freed.
#include "inference_side/sidecar/device_buffers.h"

#include <array>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <set>
#include <utility>

namespace wsync::agent {
namespace {

using reload::EngineId;
using testing::HasSubstr;

constexpr EngineId kA{1};
constexpr EngineId kB{2};

template <class State, std::size_t N>
void expect_table(const std::array<State, N>& all, const std::set<std::pair<State, State>>& legal) {
  for (const State from : all)
    for (const State to : all)
      EXPECT_EQ(is_legal(from, to), legal.contains({from, to}))
          << state_name(from) << " to " << state_name(to);
}

class DeviceBuffersTest : public testing::Test {
 protected:
  ~DeviceBuffersTest() override {
    const Result<> rules = buffers_.invariants();
    EXPECT_TRUE(rules.has_value()) << rules.error().message();
  }
  void hold() {
    ASSERT_TRUE(buffers_.begin_allocate());
    ASSERT_TRUE(buffers_.allocated(true));
  }
  DeviceBuffers buffers_{false};
};

TEST(DeviceBuffersTables, HaveARowForTheseMovesAndNoOther) {
  expect_table<BuffersState, 4>(
      {BuffersState::kNone, BuffersState::kAllocating, BuffersState::kHeld, BuffersState::kFreeing},
      {{BuffersState::kNone, BuffersState::kAllocating},
       {BuffersState::kAllocating, BuffersState::kHeld},
       {BuffersState::kAllocating, BuffersState::kNone},
       {BuffersState::kHeld, BuffersState::kFreeing},
       {BuffersState::kFreeing, BuffersState::kNone},
       {BuffersState::kFreeing, BuffersState::kHeld}});
  expect_table<MappingState, 2>({MappingState::kUnmapped, MappingState::kMapped},
                                {{MappingState::kUnmapped, MappingState::kMapped},
                                 {MappingState::kMapped, MappingState::kMapped},
                                 {MappingState::kMapped, MappingState::kUnmapped}});
  expect_table<GroupState, 3>(
      {GroupState::kConnected, GroupState::kDisconnected, GroupState::kConnecting},
      {{GroupState::kConnected, GroupState::kDisconnected},
       {GroupState::kDisconnected, GroupState::kConnecting},
       {GroupState::kDisconnected, GroupState::kConnected},
       {GroupState::kConnecting, GroupState::kConnected},
       {GroupState::kConnecting, GroupState::kDisconnected}});
}

// ---- the buffers ----

TEST_F(DeviceBuffersTest, AreAllocatedForALoadAndFreedWhenNothingNeedsThem) {
  EXPECT_FALSE(buffers_.held());
  EXPECT_TRUE(buffers_.begin_allocate());
  EXPECT_FALSE(buffers_.begin_allocate()) << "once";
  EXPECT_EQ(buffers_.buffers(), BuffersState::kAllocating);
  EXPECT_FALSE(buffers_.begin_free(false));
  EXPECT_TRUE(buffers_.allocated(true));
  EXPECT_TRUE(buffers_.held());
  EXPECT_FALSE(buffers_.begin_allocate()) << "they are there";
  EXPECT_FALSE(buffers_.begin_free(true)) << "a load needs them";
  EXPECT_TRUE(buffers_.begin_free(false));
  EXPECT_FALSE(buffers_.held());
  EXPECT_FALSE(buffers_.begin_free(false)) << "once";
  EXPECT_FALSE(buffers_.begin_allocate()) << "not before they are freed";
  EXPECT_TRUE(buffers_.freed(true));
  EXPECT_EQ(buffers_.buffers(), BuffersState::kNone);
  EXPECT_TRUE(buffers_.begin_allocate());
}

TEST_F(DeviceBuffersTest, WhatCannotBeAllocatedOrFreedStaysAsItWas) {
  EXPECT_TRUE(buffers_.begin_allocate());
  EXPECT_TRUE(buffers_.allocated(false));
  EXPECT_EQ(buffers_.buffers(), BuffersState::kNone);
  hold();
  EXPECT_TRUE(buffers_.begin_free(false));
  EXPECT_TRUE(buffers_.freed(false));
  EXPECT_TRUE(buffers_.held());
}

TEST_F(DeviceBuffersTest, AnswersThatNobodyIsWaitingForAreRefusedAndChangeNothing) {
  for (const bool ok : {true, false}) {
    EXPECT_EQ(buffers_.allocated(ok).error().code(), ErrorCode::kInternal);
    EXPECT_EQ(buffers_.freed(ok).error().code(), ErrorCode::kInternal);
    EXPECT_EQ(buffers_.connect_finished(ok).error().code(), ErrorCode::kInternal);
  }
  EXPECT_EQ(buffers_.buffers(), BuffersState::kNone);
  hold();
  EXPECT_FALSE(buffers_.allocated(true));
  EXPECT_FALSE(buffers_.freed(true));
  EXPECT_TRUE(buffers_.held());
  EXPECT_TRUE(buffers_.begin_free(false));
  EXPECT_FALSE(buffers_.allocated(true)) << "the answer to freeing is due";
  EXPECT_EQ(buffers_.buffers(), BuffersState::kFreeing);
}

TEST(KeptDeviceBuffers, AreAlwaysThere) {
  DeviceBuffers buffers(true);
  EXPECT_TRUE(buffers.held());
  EXPECT_FALSE(buffers.begin_allocate());
  EXPECT_FALSE(buffers.begin_free(false));
  EXPECT_TRUE(buffers.exported(kA, std::nullopt));
  buffers.answered(kA, 7);
  EXPECT_EQ(buffers.mapping_of(kA), MappingState::kMapped) << "until it is gone";
  buffers.disconnected(kA);
  EXPECT_EQ(buffers.mapping_of(kA), MappingState::kUnmapped);
  EXPECT_TRUE(buffers.invariants().has_value());
}

// ---- who has them ----

TEST_F(DeviceBuffersTest, AreNotFreedBeforeEveryEngineHasAnsweredTheLoadThatBroughtThem) {
  hold();
  EXPECT_TRUE(buffers_.exported(kA, 7));
  EXPECT_TRUE(buffers_.exported(kB, 8));
  EXPECT_FALSE(buffers_.begin_free(false));
  buffers_.answered(kA, 6);
  EXPECT_EQ(buffers_.mapping_of(kA), MappingState::kMapped) << "an answer to another load";
  buffers_.answered(kA, 7);
  EXPECT_EQ(buffers_.mapping_of(kA), MappingState::kUnmapped);
  EXPECT_FALSE(buffers_.begin_free(false));
  buffers_.answered(kB, 8);
  EXPECT_TRUE(buffers_.begin_free(false));
}

TEST_F(DeviceBuffersTest, ALaterLoadIsTheOneThatIsAnswered) {
  hold();
  EXPECT_TRUE(buffers_.exported(kA, 7));
  EXPECT_TRUE(buffers_.exported(kA, 9));
  buffers_.answered(kA, 7);
  EXPECT_EQ(buffers_.mapping_of(kA), MappingState::kMapped);
  buffers_.answered(kA, 9);
  EXPECT_EQ(buffers_.mapping_of(kA), MappingState::kUnmapped);
}

TEST_F(DeviceBuffersTest, AreNotHandedOutWhileThereAreNone) {
  const Result<> early = buffers_.exported(kA, 7);
  ASSERT_FALSE(early);
  EXPECT_EQ(early.error().code(), ErrorCode::kInternal);
  EXPECT_THAT(early.error().message(), HasSubstr("while they are none"));
  hold();
  ASSERT_TRUE(buffers_.begin_free(false));
  EXPECT_FALSE(buffers_.exported(kA, 7)) << "they are being freed";
  EXPECT_EQ(buffers_.mapping_of(kA), MappingState::kUnmapped);
}

TEST_F(DeviceBuffersTest, AnEngineWhoseConnectionEndsIsNotWaitedFor) {
  hold();
  EXPECT_TRUE(buffers_.exported(kA, 7));
  EXPECT_TRUE(buffers_.exported(kB, 8));
  buffers_.disconnected(kA);
  EXPECT_EQ(buffers_.mapping_of(kA), MappingState::kUnmapped);
  EXPECT_FALSE(buffers_.begin_free(false)) << "the other one has them";
  buffers_.answered(kA, 7);
  buffers_.answered(kB, 8);
  EXPECT_TRUE(buffers_.begin_free(false));
}

TEST_F(DeviceBuffersTest, TheEndOfAnEngineThatHasNothingMeansNothing) {
  hold();
  buffers_.disconnected(kA);
  EXPECT_TRUE(buffers_.begin_free(false));
}

// ---- the group ----

TEST_F(DeviceBuffersTest, TheGroupIsConnectedAnewAfterARunHasTakenItDown) {
  EXPECT_TRUE(buffers_.connected());
  EXPECT_FALSE(buffers_.begin_connect(false)) << "it is connected";
  EXPECT_TRUE(buffers_.run_finished(true));
  EXPECT_TRUE(buffers_.connected());
  EXPECT_TRUE(buffers_.run_finished(false));
  EXPECT_FALSE(buffers_.connected());
  EXPECT_FALSE(buffers_.begin_connect(true)) << "a run connects it itself";
  EXPECT_TRUE(buffers_.begin_connect(false));
  EXPECT_TRUE(buffers_.connecting());
  EXPECT_FALSE(buffers_.begin_connect(false)) << "once";
  EXPECT_FALSE(buffers_.run_finished(true)) << "no run begins meanwhile";
  EXPECT_TRUE(buffers_.connect_finished(false));
  EXPECT_EQ(buffers_.group(), GroupState::kDisconnected);
  EXPECT_TRUE(buffers_.run_finished(false));
  EXPECT_TRUE(buffers_.begin_connect(false));
  EXPECT_TRUE(buffers_.connect_finished(true));
  EXPECT_TRUE(buffers_.connected());
  EXPECT_TRUE(buffers_.run_finished(false));
  EXPECT_TRUE(buffers_.run_finished(true)) << "the next run has connected it by itself";
  EXPECT_TRUE(buffers_.connected());
}

}  // namespace
}  // namespace wsync::agent
