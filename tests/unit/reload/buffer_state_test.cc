#include "inference_side/reload/buffer_state.h"

#include <array>
#include <gtest/gtest.h>

namespace wsync::reload {
namespace {

constexpr std::array kStates = {BufferState::kFree, BufferState::kFilling, BufferState::kReady,
                                BufferState::kReloading};

constexpr BufferId ipc(std::uint32_t device, std::uint32_t slot) {
  return {.kind = BufferKind::kIpc, .device = DeviceIndex{device}, .slot = SlotIndex{slot}};
}
constexpr BufferId h2d(std::uint32_t device) { return {.device = DeviceIndex{device}}; }

// Brings one buffer of a fresh table into a state; bucket 1 fits IPC slot 1 and device 1.
void bring(BufferTable& table, const BufferId& id, BufferState state) {
  if (state == BufferState::kFree) return;
  ASSERT_TRUE(table.fill(id, 1));
  if (state == BufferState::kFilling) return;
  ASSERT_TRUE(table.filled(id));
  if (state == BufferState::kReady) return;
  ASSERT_TRUE(table.begin_reload(id, 1));
}

Result<> move_to(BufferTable& table, const BufferId& id, BufferState to) {
  switch (to) {
    case BufferState::kFree:
      return table.reader_done(id);
    case BufferState::kFilling:
      return table.fill(id, 1);
    case BufferState::kReady:
      return table.filled(id);
    case BufferState::kReloading:
      return table.begin_reload(id, 1);
  }
  return {};
}

TEST(BufferTable, EveryPairOfStatesIsEitherTheCycleOrRefused) {
  for (std::size_t from = 0; from < kStates.size(); ++from) {
    for (std::size_t to = 0; to < kStates.size(); ++to) {
      for (const BufferId& id : {ipc(0, 1), h2d(1)}) {
        BufferTable table(2, 2);
        bring(table, id, kStates[from]);
        const bool legal = to == (from + 1) % kStates.size();
        EXPECT_EQ(is_legal(kStates[from], kStates[to]), legal);
        const auto moved = move_to(table, id, kStates[to]);
        EXPECT_EQ(moved.has_value(), legal)
            << to_string(id) << ' ' << buffer_state_name(kStates[from]) << " -> "
            << buffer_state_name(kStates[to]);
        EXPECT_EQ(table.state(id), kStates[legal ? to : from]);
        EXPECT_TRUE(table.invariants().has_value());
      }
    }
  }
}

TEST(BufferTable, IsFreeOnlyAfterItsLastReader) {
  BufferTable table(1, 2);
  ASSERT_TRUE(table.fill(ipc(0, 0), 4));
  ASSERT_TRUE(table.filled(ipc(0, 0)));
  ASSERT_TRUE(table.begin_reload(ipc(0, 0), 3));
  for (int left = 2; left >= 0; --left) {
    EXPECT_FALSE(table.slot_free(SlotIndex{0}));
    EXPECT_EQ(table.bucket(ipc(0, 0)), 4U);
    ASSERT_TRUE(table.reader_done(ipc(0, 0)));
  }
  EXPECT_TRUE(table.slot_free(SlotIndex{0}));
  EXPECT_EQ(table.bucket(ipc(0, 0)), kNoBucket);
  EXPECT_FALSE(table.reader_done(ipc(0, 0)));
}

TEST(BufferTable, WithoutReadersAReloadIsOverAtOnce) {
  BufferTable table(1, 1);
  ASSERT_TRUE(table.fill(ipc(0, 0), 0));
  ASSERT_TRUE(table.filled(ipc(0, 0)));
  ASSERT_TRUE(table.begin_reload(ipc(0, 0), 0));
  EXPECT_EQ(table.state(ipc(0, 0)), BufferState::kFree);
  EXPECT_TRUE(table.invariants().has_value());
}

TEST(BufferTable, ASlotIsFreeOnlyWhenItIsOnEveryDevice) {
  BufferTable table(3, 2);
  ASSERT_TRUE(table.fill(ipc(2, 1), 5));
  EXPECT_FALSE(table.slot_free(SlotIndex{1}));
  EXPECT_TRUE(table.slot_free(SlotIndex{0}));
}

TEST(BufferTable, InvariantsNameABucketInTheWrongPlace) {
  BufferTable wrong_slot(2, 2);
  ASSERT_TRUE(wrong_slot.fill(ipc(0, 0), 3));
  EXPECT_FALSE(wrong_slot.invariants().has_value());
  BufferTable wrong_owner(2, 2);
  ASSERT_TRUE(wrong_owner.fill(h2d(0), 3));
  EXPECT_FALSE(wrong_owner.invariants().has_value());
}

TEST(BufferTable, InvariantsNameTwoBucketsInOneSlot) {
  BufferTable table(2, 2);
  ASSERT_TRUE(table.fill(ipc(0, 0), 0));
  ASSERT_TRUE(table.fill(ipc(1, 0), 2));
  const Result<> broken = table.invariants();
  ASSERT_FALSE(broken.has_value());
  EXPECT_NE(broken.error().message().find("IPC buffer 0 of device 1"), std::string::npos);
}

TEST(BufferTable, InvariantsNameTwoBroadcastsAtOnce) {
  BufferTable table(2, 2);
  ASSERT_TRUE(table.fill(ipc(0, 0), 0));
  ASSERT_TRUE(table.fill(ipc(0, 1), 1));
  EXPECT_FALSE(table.invariants().has_value());
}

}  // namespace
}  // namespace wsync::reload
