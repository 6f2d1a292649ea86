#include "trainer_side/training/corpus.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>

#include "shared/base/check.h"
#include "shared/base/durable_file.h"
#include "shared/base/format.h"
#include "trainer_side/training/random.h"

namespace wsync::training {
namespace {
namespace fs = std::filesystem;

tl::unexpected<Error> cannot_read(const fs::path& path, const std::error_code& error) {
  const bool missing = error == std::errc::no_such_file_or_directory;
  return fail(missing ? ErrorCode::kNotFound : ErrorCode::kIo,
              fmt::format("cannot read training text {}: {}", path.string(), error.message()));
}

// Returns the files of a directory, by name. Ignores entries that are not files, including dangling
// links.
Result<std::vector<fs::path>> files_in(const fs::path& directory) {
  std::vector<fs::path> files;
  std::error_code error;
  fs::directory_iterator entries(directory, error);
  for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
    std::error_code dangling;
    if (fs::is_regular_file(entries->path(), dangling)) files.push_back(entries->path());
  }
  if (error) return cannot_read(directory, error);
  std::sort(files.begin(), files.end());
  if (files.empty())
    return fail(ErrorCode::kInvalidInput,
                fmt::format("{}: expected files of training text, found none (directories in it "
                            "are not read; name them too)",
                            directory.string()));
  return files;
}

Result<std::vector<fs::path>> files_of(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found)
    return cannot_read(path, std::make_error_code(std::errc::no_such_file_or_directory));
  if (error) return cannot_read(path, error);
  if (fs::is_directory(status)) return files_in(path);
  if (!fs::is_regular_file(status))
    return fail(ErrorCode::kInvalidInput,
                fmt::format("{}: expected a file or a directory of training text, found something "
                            "else",
                            path.string()));
  return std::vector{path};
}

// Appends the file and a zero byte.
Result<> append_file(const fs::path& path, Bytes& text) {
  const auto too_long = [&path] {
    return fail(ErrorCode::kInvalidInput,
                fmt::format("{}: with it there are more than {} bytes of training text, the limit; "
                            "name fewer files",
                            path.string(), kCorpusBytes));
  };
  std::error_code error;
  const std::uint64_t size = fs::file_size(path, error);
  if (error) return cannot_read(path, error);
  if (text.size() + size + 1 > kCorpusBytes) return too_long();
  const Result<Bytes> read = read_small_file(path, kCorpusBytes - text.size() - 1);
  // The file has grown.
  if (!read && read.error().code() == ErrorCode::kInvalidInput) return too_long();
  if (!read) return fail(read.error());
  text.insert(text.end(), read->begin(), read->end());
  text.push_back(std::byte{0});
  return {};
}

// Seed of a micro-batch. Each micro-batch has its own sequence of random numbers.
std::uint64_t seed_of(std::uint64_t seed, std::uint64_t step, std::uint64_t number) {
  return Random(Random(Random(seed).next() ^ step).next() ^ number).next();
}

}  // namespace

Result<Corpus> Corpus::open(const std::vector<std::string>& files, std::size_t sequence) {
  Bytes text;
  std::set<fs::path> seen;
  const std::vector<std::string> given =
      files.empty() ? std::vector<std::string>{kLicenceTexts} : files;
  for (const std::string& name : given) {
    const Result<std::vector<fs::path>> found = files_of(name);
    if (!found && files.empty())
      return fail(found.error().with_context(
          "no training text is given (data.files), and Debian's licence texts are not installed"));
    if (!found) return fail(found.error());
    for (const fs::path& path : *found) {
      std::error_code error;
      const fs::path real = fs::canonical(path, error);
      if (error) return cannot_read(path, error);
      if (seen.insert(real).second) WSYNC_TRY(append_file(path, text));
    }
  }
  if (text.size() < sequence + 1)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("training text: expected {} bytes or more, a sequence of {} and the "
                            "byte after it, found {} in {} with their end marks; name more files, "
                            "or take shorter sequences",
                            sequence + 1, sequence, text.size(), counted(seen.size(), "file")));
  return Corpus(std::move(text));
}

MicroBatch Corpus::micro_batch(std::uint64_t seed, std::uint64_t step, std::uint64_t number,
                               std::size_t sequences, std::size_t sequence) const {
  WSYNC_CHECK(sequence < text_.size(), "a window and the byte after it fit in the text");
  MicroBatch batch{.sequence = sequence, .tokens = {}, .targets = {}};
  batch.tokens.reserve(sequences * sequence);
  batch.targets.reserve(sequences * sequence);
  Random random(seed_of(seed, step, number));
  for (std::size_t i = 0; i < sequences; ++i) {
    const std::size_t first = random.next() % (text_.size() - sequence);
    for (std::size_t at = first; at < first + sequence; ++at) {
      batch.tokens.push_back(std::to_integer<std::uint32_t>(text_[at]));
      batch.targets.push_back(std::to_integer<std::uint32_t>(text_[at + 1]));
    }
  }
  return batch;
}

}  // namespace wsync::training
