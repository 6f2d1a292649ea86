// Any bytes as a file of two records: what is read lies inside of the file, and a record that is
// written into either half of it is read again.
#include <cstdint>
#include <functional>
#include <span>

#include "inference_side/staging/sidecar_record.h"
#include "shared/base/check.h"
#include "shared/base/record_file.h"
#include "trainer_side/coordinator/coordinator_record.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto file = std::as_bytes(std::span(data, size));
  const auto record = wsync::record_in(file);
  WSYNC_CHECK(record.size() <= file.size(), "a record is a part of its file");
  if (!record.empty()) {
    const std::less_equal<const std::byte*> is_before;
    WSYNC_CHECK(is_before(file.data(), record.data()) &&
                    is_before(record.data() + record.size(), file.data() + file.size()),
                "a record lies in its file");
  }
  if (const auto decoded = wsync::staging::decode_record(record))
    WSYNC_CHECK(wsync::staging::decode_record(wsync::staging::encode(*decoded)) == *decoded,
                "a record is written again alike");
  if (const auto decoded = wsync::coordinator::decode_coordinator_record(record))
    WSYNC_CHECK(wsync::coordinator::decode_coordinator_record(
                    wsync::coordinator::encode(*decoded)) == *decoded,
                "a record is written again alike");
  return 0;
}
