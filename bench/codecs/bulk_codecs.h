// What reads, checks or converts every byte of a model on its way, by one thread.
#pragma once

#include <vector>

#include "bench/baseline/workbench.h"
#include "bench/harness/rows.h"
#include "shared/base/error.h"

namespace wsync::bench {

// Bytes of a bucket in the row of frames; of the last one what is left.
inline constexpr std::uint64_t kFramedBucketBytes = 4ULL << 20U;

// Adds memcpy and the streaming copy, and all that is a share of them. `bench` outlives the rows.
// Each measurement checks its result: bytes with bytes, digests with digests that were computed in
// another way.
[[nodiscard]] Result<> add_bulk_codec_rows(Ground& bench, std::vector<Row>& rows);

}  // namespace wsync::bench
