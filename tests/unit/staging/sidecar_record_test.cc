// The bytes of a sidecar's record: all of them are covered by its digest.
#include "inference_side/staging/sidecar_record.h"

#include <gtest/gtest.h>

#include "tests/support/versions.h"

namespace wsync::staging {
namespace {

TEST(SidecarRecord, RoundTripsAndRefusesEveryDamagedByte) {
  const SidecarRecord record{.fence = {.epoch = 3, .run_id = {4, 5}},
                             .decision = {.fence = {.epoch = 2}, .number = 7},
                             .kind = control::DecisionKind::kRollback,
                             .target = kV2,
                             .content = {.low = kV2.step, .high = 9},
                             .withdrawn = {kV1, kV3}};
  const Bytes bytes = encode(record);
  const Result<SidecarRecord> read = decode_record(bytes);
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(*read, record);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    Bytes bad = bytes;
    bad[i] ^= std::byte{1};
    EXPECT_FALSE(decode_record(bad).has_value()) << i;
    EXPECT_FALSE(decode_record(std::span(bytes).first(i)).has_value()) << i;
  }
}

}  // namespace
}  // namespace wsync::staging
