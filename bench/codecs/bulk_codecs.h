// Codecs that read, check or convert every byte of a model, each by one thread.
#pragma once

#include <vector>

#include "bench/baseline/workbench.h"
#include "bench/harness/rows.h"
#include "shared/base/error.h"

namespace wsync::bench {

// Bytes per bucket in the row of frames. The last bucket may be smaller.
inline constexpr std::uint64_t kFramedBucketBytes = 4ULL << 20U;

// Adds memcpy, the streaming copy, and all rows that are compared with them. `bench` outlives the
// rows. Each measurement checks its result: bytes are compared with bytes, and digests with digests
// that were computed in another way.
[[nodiscard]] Result<> add_bulk_codec_rows(Ground& bench, std::vector<Row>& rows);

}  // namespace wsync::bench
