// Text to train on. A token is a byte.
//
// Thread: any, after open().
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "shared/base/bytes.h"
#include "shared/base/digest.h"
#include "shared/base/error.h"
#include "shared/base/units.h"
#include "trainer_side/training/micro_batch.h"

namespace wsync::training {

inline constexpr std::uint64_t kCorpusBytes = 1 * limits::kGiB;
// Used if no files are given: Debian installs them on every machine.
inline constexpr const char* kLicenceTexts = "/usr/share/common-licenses";

// The bytes of files, one after the other, each followed by a zero byte. Held in memory.
class Corpus {
 public:
  // `files`: files, and directories, whose files are read in the order of their names;
  // subdirectories are skipped. If empty, kLicenceTexts is read. Symbolic links are followed, and a
  // file that occurs twice is read once. `sequence`: maximum length in bytes of a window of
  // micro_batch().
  //
  // Returns kNotFound if a path does not exist. Returns kInvalidInput if it is neither file nor
  // directory, or if the text is shorter than one window plus one byte, or longer than
  // kCorpusBytes. Returns kIo if a file cannot be read.
  [[nodiscard]] static Result<Corpus> open(const std::vector<std::string>& files,
                                           std::size_t sequence);

  [[nodiscard]] std::uint64_t bytes() const noexcept { return text_.size(); }
  // Digest of all bytes. Two runs with the same digest and the same seed get the same
  // micro-batches.
  [[nodiscard]] Digest digest() const noexcept { return digest_of(text_); }

  // Returns micro-batch `number` of a step: `sequences` windows of `sequence` bytes at random
  // positions, and the byte after each byte. The result depends only on the arguments.
  [[nodiscard]] MicroBatch micro_batch(std::uint64_t seed, std::uint64_t step, std::uint64_t number,
                                       std::size_t sequences, std::size_t sequence) const;

 private:
  explicit Corpus(Bytes text) : text_(std::move(text)) {}
  Bytes text_;
};

}  // namespace wsync::training
