// The safetensors reader and writer: every rule, both ways of reading, files that change.
#include "shared/weights/safetensors.h"

#include <csignal>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include "shared/base/units.h"
#include "tests/unit/weights/weights_files.h"

namespace wsync {
namespace {

using test::safetensors_bytes;
using test::TemporaryDirectory;
using test::write_file;
using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;

// The error of parsing that header, or "accepted".
std::string verdict(std::string_view json, std::uint64_t data_bytes,
                    SafetensorsRules rules = SafetensorsRules::kStrict) {
  const auto header =
      parse_safetensors_header(std::as_bytes(std::span(json)), 8 + json.size() + data_bytes, rules);
  if (header) return "accepted";
  EXPECT_EQ(header.error().code(), ErrorCode::kInvalidInput);
  EXPECT_EQ(header.error().message().find('\n'), std::string::npos) << header.error().message();
  return header.error().message();
}

TEST(SafetensorsHeader, AcceptsTheEdgeCases) {
  EXPECT_EQ(verdict("{}", 0), "accepted");
  EXPECT_EQ(verdict("{}   \n ", 0), "accepted");
  EXPECT_EQ(verdict(R"({"__metadata__":{"a":"b","":""}})", 0), "accepted");
  EXPECT_EQ(verdict(R"({"x":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})", 4), "accepted");
  EXPECT_EQ(verdict(R"({"x":{"dtype":"F32","shape":[3,0],"data_offsets":[0,0]}})", 0), "accepted");
  EXPECT_EQ(verdict(R"({"x":{"data_offsets":[2,4],"shape":[4],"dtype":"F4"},)"
                    R"("y":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                    R"("z":{"dtype":"U8","shape":[0],"data_offsets":[2,2]}})",
                    4),
            "accepted");
}

TEST(SafetensorsHeader, KeepsFileOrderAndMetadata) {
  const std::string_view json =
      R"({"b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"__metadata__":{"format":"pt"},)"
      R"("a":{"dtype":"F6_E2M3","shape":[2,2],"data_offsets":[2,5]}})";
  const auto header = parse_safetensors_header(std::as_bytes(std::span(json)), 8 + json.size() + 5);
  ASSERT_TRUE(header) << header.error().message();
  ASSERT_EQ(header->tensors.size(), 2U);
  EXPECT_EQ(header->tensors[0].info, (TensorInfo{.name = "b", .dtype = DType::kU8, .shape = {2}}));
  EXPECT_EQ(header->tensors[1].info,
            (TensorInfo{.name = "a", .dtype = DType::kF6E2M3, .shape = {2, 2}}));
  EXPECT_EQ(header->metadata.at("format"), "pt");
  EXPECT_EQ(header->data_begin, 8 + json.size());
}

TEST(SafetensorsHeader, NamesTheTensorAndTheRule) {
  const auto x = [](std::string_view entry, std::uint64_t data = 4) {
    return verdict(std::string(R"({"x":)").append(entry).append("}"), data);
  };
  EXPECT_EQ(x(R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})", 5),
            "1 trailing bytes after the last tensor 'x', which ends at 4");
  EXPECT_EQ(x(R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})", 3),
            "tensor 'x': data_offsets [0, 4] end past the file's 3 bytes of data; it is truncated");
  EXPECT_EQ(x(R"({"dtype":"F32","shape":[1],"data_offsets":[1,5]})", 5),
            "tensor 'x': data_offsets [1, 5] leave a hole after byte 0");
  EXPECT_EQ(x(R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
              R"("y":{"dtype":"F32","shape":[1],"data_offsets":[2,6]})"),
            "tensor 'y': data_offsets [2, 6] overlap the tensor before, which ends at 4");
  EXPECT_EQ(x(R"({"dtype":"F32","shape":[1],"data_offsets":[4,0]})"),
            "tensor 'x': data_offsets [4, 0] end before they begin");
  EXPECT_EQ(x(R"({"dtype":"F32","shape":[2],"data_offsets":[0,4]})"),
            "tensor 'x': data_offsets [0, 4] hold 4 bytes; F32 [2] needs 8");
  EXPECT_EQ(x(R"({"dtype":"F4","shape":[3],"data_offsets":[0,2]})", 2),
            "tensor 'x': shape [3] of F4 takes 12 bits, which is not a whole number of bytes");
  EXPECT_EQ(x(R"({"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,4]})"),
            "tensor 'x': the bits of shape [4294967296, 4294967296] of U8 do not fit in 64 bits");
  EXPECT_EQ(x(R"({"dtype":"F33","shape":[1],"data_offsets":[0,4]})"),
            "tensor 'x': dtype 'F33' is unknown");
  EXPECT_EQ(x(R"({"dtype":3,"shape":[1],"data_offsets":[0,4]})"),
            "tensor 'x': dtype is a number; expected a string");
  EXPECT_EQ(x(R"({"dtype":"F32","shape":[1.0],"data_offsets":[0,4]})"),
            "tensor 'x': shape holds the number 1.0; expected unsigned integers");
  EXPECT_EQ(x(R"({"dtype":"F32","shape":[-1],"data_offsets":[0,4]})"),
            "tensor 'x': shape holds a negative number; expected unsigned integers");
  EXPECT_EQ(x(R"({"dtype":"F32","shape":["1"],"data_offsets":[0,4]})"),
            "tensor 'x': shape holds a string; expected unsigned integers");
  EXPECT_EQ(x(R"({"dtype":"F32","shape":[18446744073709551616],"data_offsets":[0,4]})"),
            "tensor 'x': shape holds the number 18446744073709551616; expected unsigned integers");
  EXPECT_EQ(x(R"({"dtype":"F32","shape":[[1]],"data_offsets":[0,4]})"),
            "tensor 'x': shape holds an array; expected unsigned integers");
  EXPECT_EQ(x(R"({"dtype":"F32","shape":null,"data_offsets":[0,4]})"),
            "tensor 'x': shape is null; expected an array of unsigned integers");
  EXPECT_EQ(x(R"({"dtype":"F32","shape":[1],"data_offsets":[0]})"),
            "tensor 'x': data_offsets has 1 numbers; expected 2");
  EXPECT_EQ(x(R"({"dtype":"F32","shape":[1],"data_offsets":[0,4,4]})"),
            "tensor 'x': data_offsets has more than 2 numbers");
  EXPECT_EQ(x(R"({"dtype":"F32","shape":[1]})"), "tensor 'x': its entry has no data_offsets");
  EXPECT_EQ(x(R"({"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]})"),
            "tensor 'x': its entry has the key 'dtype' twice");
  EXPECT_EQ(x("[]"), "tensor 'x': its entry is an array; expected an object");
  EXPECT_EQ(x(R"({"dtype":"F32","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,4]})"),
            "tensor 'x': more than 8 dimensions");
  EXPECT_EQ(verdict(R"({"__metadata__":{"a":1}})", 0),
            "__metadata__: key 'a' is a number; expected a string");
  EXPECT_EQ(verdict(R"({"__metadata__":null})", 0),
            "__metadata__: its entry is null; expected an object");
  EXPECT_THAT(verdict(R"({"x": )", 0), HasSubstr("not JSON at byte"));
  EXPECT_THAT(verdict("{} {}", 0), HasSubstr("not JSON at byte"));
  EXPECT_THAT(verdict("{\"\xff\":1}", 0), HasSubstr("not JSON at byte"));
  EXPECT_THAT(verdict(std::string_view("{}\0\0", 4), 0), HasSubstr("NUL"));
  EXPECT_THAT(verdict("{\"a\nb\":3}", 0), HasSubstr("not JSON"));
  EXPECT_EQ(verdict(R"({"a\nb":3})", 0),
            "tensor 'a\\x0ab': its entry is a number; expected an object");
}

TEST(SafetensorsHeader, StrictRefusesWhatLenientAccepts) {
  const auto check = [](std::string_view json, std::uint64_t data, std::string_view strict) {
    EXPECT_EQ(verdict(json, data, SafetensorsRules::kLenient), "accepted") << json;
    EXPECT_EQ(verdict(json, data), strict);
  };
  check(" {}", 0, "the header does not begin with '{'");
  check(R"({"x":{"dtype":"U8","shape":[9],"data_offsets":[0,9]},)"
        R"("x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
        1, "tensor 'x': the name is given twice");
  check(R"({"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"extra":{"a":[1,[{}]]}}})", 1,
        "tensor 'x': its entry has an unknown key 'extra'");
  check(R"({"__metadata__":{"a":"b","a":"c"}})", 0, "__metadata__: key 'a' is given twice");
  check(R"({"__metadata__":{},"__metadata__":{}})", 0, "__metadata__: it is given twice");
  std::string deep(1000, '[');
  deep = R"({"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"e":)" + deep;
  EXPECT_EQ(verdict(deep, 1, SafetensorsRules::kLenient),
            "tensor 'x': its entry nests deeper than 32 levels");
  EXPECT_THAT(verdict("\xef\xbb\xbf{}", 0, SafetensorsRules::kLenient), HasSubstr("order mark"));
}

std::vector<TensorInfo> every_dtype() {
  std::vector<TensorInfo> tensors;
  for (std::size_t i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    tensors.push_back(
        {.name = "t." + std::string(dtype_name(dtype)), .dtype = dtype, .shape = {2, 4}});
  }
  tensors.push_back({.name = "scalar", .dtype = DType::kF64, .shape = {}});
  tensors.push_back({.name = "empty", .dtype = DType::kBF16, .shape = {4, 0}});
  tensors.push_back({.name = "quote\"\\\n\xc3\xa9", .dtype = DType::kBF16, .shape = {100'000}});
  return tensors;
}

class SafetensorsFileTest : public testing::TestWithParam<SafetensorsAccess> {
 protected:
  [[nodiscard]] auto open(std::string_view name,
                          SafetensorsRules rules = SafetensorsRules::kStrict) const {
    return SafetensorsFile::open(directory_ / name, {.rules = rules, .access = GetParam()});
  }
  // Writes bytes and returns what opening says.
  [[nodiscard]] std::string opening(std::string_view bytes) const {
    write_file(directory_ / "f.safetensors", bytes);
    const auto file = open("f.safetensors");
    return file ? "opened" : file.error().message();
  }
  TemporaryDirectory directory_;
};

TEST_P(SafetensorsFileTest, ReadsWhatWasWritten) {
  const std::vector<TensorInfo> tensors = every_dtype();
  const std::map<std::string, std::string> metadata{{"format", "pt"}, {"\x01", "\xe2\x82\xac"}};
  const auto written =
      write_safetensors(directory_ / "all.safetensors", tensors, metadata, test::fill_content);
  ASSERT_TRUE(written) << written.error().message();
  EXPECT_THAT(directory_.names(), ElementsAre("all.safetensors"));
  auto opened = open("all.safetensors");
  ASSERT_TRUE(opened) << opened.error().message();
  SafetensorsFile file = std::move(*opened);
  EXPECT_EQ(file.metadata(), metadata);
  ASSERT_EQ(file.tensors().size(), tensors.size());
  DType before = kLastDType;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const SafetensorsEntry& entry = file.tensors()[i];
    const auto at = std::find_if(tensors.begin(), tensors.end(),
                                 [&](const TensorInfo& t) { return t.name == entry.info.name; });
    ASSERT_NE(at, tensors.end());
    EXPECT_EQ(entry.info, *at);
    EXPECT_LE(entry.info.dtype, before);
    before = entry.info.dtype;
    const auto index = static_cast<std::size_t>(at - tensors.begin());
    std::vector<std::byte> bytes(entry.end - entry.begin);
    ASSERT_TRUE(file.read(i, 0, bytes));
    for (std::size_t b = 0; b < bytes.size(); ++b)
      ASSERT_EQ(bytes[b], test::content(index, b)) << entry.info.name;
    if (bytes.size() < 3) continue;
    ASSERT_TRUE(file.read(i, 1, std::span(bytes).first(2)));
    EXPECT_EQ(bytes[0], test::content(index, 1));
    EXPECT_FALSE(file.read(i, 1, bytes)) << "past the end";
    EXPECT_FALSE(file.read(i, ~0ULL, std::span(bytes).first(2)));
  }
  EXPECT_FALSE(file.read(tensors.size(), 0, {}));
}

TEST_P(SafetensorsFileTest, RefusesCorruptFiles) {
  const std::string path = directory_ / "f.safetensors";
  EXPECT_EQ(opening(""), path + ": the file has 0 bytes; a safetensors file has at least 8");
  EXPECT_EQ(opening("1234567"), path + ": the file has 7 bytes; a safetensors file has at least 8");
  EXPECT_EQ(opening(std::string(8, '\xff') + "{}"),
            path + ": the header length is 18446744073709551615; at most 100000000 are allowed");
  EXPECT_EQ(opening(std::string("\x03\0\0\0\0\0\0\0{}", 10)),
            path + ": the header length is 3; the file has only 10 bytes");
  EXPECT_EQ(opening(safetensors_bytes("{}", "x")),
            path + ": 1 trailing bytes after the header, which ends at 0");
  EXPECT_EQ(opening(safetensors_bytes("{}")), "opened");
  EXPECT_EQ(opening(safetensors_bytes("")), path + ": the header does not begin with '{'");
}

TEST_P(SafetensorsFileTest, RefusesWhatIsNoFile) {
  const auto missing = open("absent.safetensors");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code(), ErrorCode::kNotFound);
  const auto directory = open(".");
  ASSERT_FALSE(directory);
  EXPECT_THAT(directory.error().message(), HasSubstr("not a regular file"));
  ASSERT_EQ(mkfifo((directory_ / "fifo").c_str(), 0600), 0);
  const auto fifo = open("fifo");
  ASSERT_FALSE(fifo) << "and does not wait for a writer";
  EXPECT_THAT(fifo.error().message(), HasSubstr("not a regular file"));
}

TEST_P(SafetensorsFileTest, ATruncatedFileIsAnErrorAndNoCrash) {
  const std::vector<TensorInfo> tensors{
      {.name = "x", .dtype = DType::kU8, .shape = {3 * limits::kMiB}}};
  ASSERT_TRUE(write_safetensors(directory_ / "t.safetensors", tensors, {}, test::fill_content));
  const auto file = open("t.safetensors");
  ASSERT_TRUE(file);
  std::vector<std::byte> bytes(3 * limits::kMiB);
  ASSERT_TRUE(file->read(0, 0, bytes));
  std::filesystem::resize_file(directory_ / "t.safetensors", limits::kMiB);
  const auto read = file->read(0, 0, bytes);
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code(), ErrorCode::kInvalidInput);
  EXPECT_THAT(read.error().message(), HasSubstr("truncated"));
  EXPECT_FALSE(file->read(0, 0, std::span(bytes).first(10)))
      << "it changed, even where it is whole";
}

TEST_P(SafetensorsFileTest, AChangedFileIsAnError) {
  const std::vector<TensorInfo> tensors{{.name = "x", .dtype = DType::kU8, .shape = {64}}};
  ASSERT_TRUE(write_safetensors(directory_ / "t.safetensors", tensors, {}, test::fill_content));
  const auto file = open("t.safetensors");
  ASSERT_TRUE(file);
  std::vector<std::byte> bytes(64);
  // Replaced by rename: the open file is the old one, whole.
  ASSERT_TRUE(write_safetensors(directory_ / "t.safetensors", {}, {}, test::fill_content));
  EXPECT_TRUE(file->read(0, 0, bytes));
  EXPECT_EQ(bytes[5], test::content(0, 5));
  // Written in place.
  ASSERT_TRUE(write_safetensors(directory_ / "u.safetensors", tensors, {}, test::fill_content));
  const auto in_place = open("u.safetensors");
  ASSERT_TRUE(in_place);
  std::filesystem::last_write_time(
      directory_ / "u.safetensors",
      std::filesystem::file_time_type::clock::now() + std::chrono::hours(1));
  const auto read = in_place->read(0, 0, bytes);
  ASSERT_FALSE(read);
  EXPECT_THAT(read.error().message(), HasSubstr("the file changed while it was read"));
}

INSTANTIATE_TEST_SUITE_P(Access, SafetensorsFileTest,
                         testing::Values(SafetensorsAccess::kRead, SafetensorsAccess::kMap),
                         [](const auto& access) {
                           return access.param == SafetensorsAccess::kRead ? "Read" : "Map";
                         });

TEST(SafetensorsWriter, MakesTheReferenceWritersBytes) {
  TemporaryDirectory directory;
  const std::vector<TensorInfo> tensors{{.name = "a", .dtype = DType::kU8, .shape = {3}},
                                        {.name = "c", .dtype = DType::kF32, .shape = {}},
                                        {.name = "b", .dtype = DType::kF32, .shape = {0, 2}}};
  ASSERT_TRUE(write_safetensors(directory / "w.safetensors", tensors, {{"k", "v"}},
                                [](std::size_t i, std::uint64_t, std::span<std::byte> out) {
                                  std::fill(out.begin(), out.end(),
                                            static_cast<std::byte>('p' + i));
                                  return Result<>();
                                }));
  std::string json =
      R"({"__metadata__":{"k":"v"},"b":{"dtype":"F32","shape":[0,2],"data_offsets":[0,0]},)"
      R"("c":{"dtype":"F32","shape":[],"data_offsets":[0,4]},)"
      R"("a":{"dtype":"U8","shape":[3],"data_offsets":[4,7]}})";
  json.resize((json.size() + 7) / 8 * 8, ' ');
  EXPECT_EQ(test::read_file(directory / "w.safetensors"), safetensors_bytes(json, "qqqqppp"));
}

TEST(SafetensorsWriter, RefusesBadNamesAndLeavesNothing) {
  TemporaryDirectory directory;
  const auto write = [&](const std::vector<std::string>& names) {
    std::vector<TensorInfo> tensors;
    for (const std::string& name : names)
      tensors.push_back({.name = name, .dtype = DType::kU8, .shape = {1}});
    const auto result =
        write_safetensors(directory / "w.safetensors", tensors, {}, test::fill_content);
    return result ? "written" : result.error().message();
  };
  EXPECT_THAT(write({"a", "a"}), EndsWith("tensor 'a' is given twice"));
  EXPECT_THAT(write({"__metadata__"}), HasSubstr("reserves"));
  EXPECT_THAT(write({"\xff"}), HasSubstr("not UTF-8"));
  EXPECT_TRUE(directory.names().empty());
}

TEST(SafetensorsWriter, AFailureLeavesTheOldFileAndNoTemporary) {
  TemporaryDirectory directory;
  write_file(directory / "w.safetensors", "old");
  const std::vector<TensorInfo> tensors{
      {.name = "x", .dtype = DType::kU8, .shape = {20 * limits::kMiB}}};
  const auto source_fails = write_safetensors(
      directory / "w.safetensors", tensors, {},
      [](std::size_t, std::uint64_t offset, std::span<std::byte> out) -> Result<> {
        if (offset != 0) return fail(ErrorCode::kIo, "the source broke");
        std::fill(out.begin(), out.end(), std::byte{1});
        return {};
      });
  ASSERT_FALSE(source_fails);
  EXPECT_EQ(source_fails.error().message(), "the source broke");
  EXPECT_THAT(directory.names(), ElementsAre("w.safetensors"));
  EXPECT_EQ(test::read_file(directory / "w.safetensors"), "old");
}

TEST(SafetensorsWriter, AFullDiskIsAnErrorAndLeavesNoTemporary) {
  // A file size limit stands for the full disk: the same calls fail in the same places.
  TemporaryDirectory directory;
  const std::vector<TensorInfo> tensors{
      {.name = "x", .dtype = DType::kU8, .shape = {20 * limits::kMiB}}};
  rlimit old{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{.rlim_cur = limits::kMiB, .rlim_max = old.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const auto result =
      write_safetensors(directory / "w.safetensors", tensors, {}, test::fill_content);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &old), 0);
  std::signal(SIGXFSZ, old_handler);
  ASSERT_FALSE(result);
  EXPECT_THAT(result.error().message(), HasSubstr("w.safetensors"));
  EXPECT_TRUE(directory.names().empty());
}

}  // namespace
}  // namespace wsync
