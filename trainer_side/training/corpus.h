// Text to train on, byte by byte: a token is a byte.
//
// Thread: any, once it is open.
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
// Read when no files are given: Debian has them on every machine.
inline constexpr const char* kLicenceTexts = "/usr/share/common-licenses";

// The bytes of files, one after the other, each ended by a zero byte. Held in memory.
class Corpus {
 public:
  // `files`: files, and directories whose files are read, by name and not those of directories in
  // them; empty: kLicenceTexts. Symbolic links are followed, and a file that is reached twice is
  // read once. `sequence`: the most bytes of a window that micro_batch() will be asked for.
  //
  // kNotFound: one of them is not there. kInvalidInput: it is neither file nor directory, or all
  // are together shorter than one window and the byte after it, or longer than kCorpusBytes. kIo:
  // it cannot be read.
  [[nodiscard]] static Result<Corpus> open(const std::vector<std::string>& files,
                                           std::size_t sequence);

  [[nodiscard]] std::uint64_t bytes() const noexcept { return text_.size(); }
  // Of all bytes: two runs with the same one and the same seed see the same micro-batches.
  [[nodiscard]] Digest digest() const noexcept { return digest_of(text_); }

  // Micro-batch `number` of a step: `sequences` windows of `sequence` bytes anywhere in the text,
  // and what follows each byte. The same for the same arguments, whatever was asked before.
  [[nodiscard]] MicroBatch micro_batch(std::uint64_t seed, std::uint64_t step, std::uint64_t number,
                                       std::size_t sequences, std::size_t sequence) const;

 private:
  explicit Corpus(Bytes text) : text_(std::move(text)) {}
  Bytes text_;
};

}  // namespace wsync::training
