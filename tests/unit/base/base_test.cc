#include <cerrno>
#include <csignal>
#include <functional>
#include <gtest/gtest.h>
#include <random>
#include <sys/wait.h>
#include <unistd.h>

#include "shared/base/bytes.h"
#include "shared/base/check.h"
#include "shared/base/digest.h"
#include "shared/base/error.h"
#include "shared/base/fail_point.h"
#include "shared/base/log.h"
#include "shared/base/weight_limits.h"
#include "tests/support/captured_log.h"

namespace wsync {
namespace {

std::span<const std::byte> as_span(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

TEST(Error, CarriesCodeSentenceAndLine) {
  const Result<int> result = fail(ErrorCode::kBusy, "no free arena");
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(result.error().code(), ErrorCode::kBusy);
  EXPECT_STREQ(result.error().where().function_name(), __PRETTY_FUNCTION__);
  EXPECT_EQ(result.error().with_context("publish").message(), "publish: no free arena");
}

TEST(Error, ErrnoMapsToItsCode) {
  const Result<> full = fail_errno("write /tmp/x", ENOSPC);
  EXPECT_EQ(full.error().code(), ErrorCode::kResourceExhausted);
  EXPECT_EQ(full.error().message(), "write /tmp/x: No space left on device");
  const Result<> missing = fail_errno("open", ENOENT);
  EXPECT_EQ(missing.error().code(), ErrorCode::kNotFound);
}

// Values of the XXH3 specification's reference implementation (xxhsum 0.8 -H2).
TEST(Digest, MatchesTheReferenceImplementation) {
  EXPECT_EQ(digest_of({}).to_string(), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(digest_of(as_span("abc")).to_string(), "06b05ab6733a618578af5f94892f3950");
}

TEST(Digest, ChunkedEqualsWhole) {
  std::mt19937_64 random(1);
  std::string text(100'000, '\0');
  for (char& c : text) c = static_cast<char>(random());
  Digester digester;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t n = std::min<std::size_t>(random() % 5000, text.size() - at);
    digester.update(as_span(text).subspan(at, n));
    at += n;
  }
  EXPECT_EQ(digester.finish(), digest_of(as_span(text)));
}

TEST(Digest, ParsesWhatItPrintsAndRefusesTheRest) {
  const Digest digest = digest_of(as_span("weights"));
  EXPECT_EQ(Digest::parse(digest.to_string()).value(), digest);
  EXPECT_FALSE(Digest::parse("abc").has_value());
  EXPECT_FALSE(Digest::parse(std::string(31, '0') + "g").has_value());
}

TEST(Bytes, RoundTrip) {
  ByteWriter writer;
  writer.put<std::uint16_t>(7);
  writer.put<std::int64_t>(-5);
  writer.put_string("layer");
  const Bytes bytes = std::move(writer).take();
  ByteReader reader(bytes);
  EXPECT_EQ(reader.get<std::uint16_t>("a"), 7);
  EXPECT_EQ(reader.get<std::int64_t>("b"), -5);
  EXPECT_EQ(reader.get_string(16, "c"), "layer");
  EXPECT_TRUE(reader.finish("test").has_value());
}

TEST(Bytes, RefusesShortLongAndOversized) {
  ByteWriter writer;
  writer.put<std::uint32_t>(0xffffffff);
  ByteReader count(writer.buffer());
  EXPECT_EQ(count.get_count(limits::kTensorCount, 1, "tensors"), 0U);
  EXPECT_FALSE(count.finish("message").has_value());
  ByteReader text(writer.buffer());
  EXPECT_EQ(text.get_string(100, "name"), "");
  EXPECT_NE(text.finish("message").error().message().find("name"), std::string::npos);
  ByteReader left(writer.buffer());
  EXPECT_EQ(left.get<std::uint8_t>("x"), 0xff);
  EXPECT_FALSE(left.finish("message").has_value());
}

TEST(Log, LevelsAndFormatsAreParsedOrNamed) {
  EXPECT_EQ(parse_log_level("warning").value(), LogLevel::kWarning);
  EXPECT_NE(parse_log_level("loud").error().message().find("debug, info"), std::string::npos);
  EXPECT_FALSE(parse_log_format("xml").has_value());
}

TEST(Log, JsonLinesEscapeAndRespectTheLevel) {
  log_init({.level = LogLevel::kWarning, .format = LogFormat::kJson, .role = "side\"car"});
  test::capture_log();
  log_info("hidden");
  log_warning("line\n{}", 7);
  const std::string out = test::captured_log();
  log_init({});
  EXPECT_EQ(out.find("hidden"), std::string::npos);
  EXPECT_NE(out.find(R"("level":"warning","role":"side\"car","message":"line\u000a7"})"),
            std::string::npos)
      << out;
}

TEST(CheckDeathTest, AbortsWithTheSentence) {
  EXPECT_DEATH(WSYNC_CHECK(1 == 2, "one is not two"), "one is not two");
}

// ---- fail points ----

// What became of a process that does `work`: its exit status, or 1000 + the signal.
int ending_of(const std::function<void()>& work) {
  const pid_t child = ::fork();
  if (child == 0) {
    work();
    ::_exit(7);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFSIGNALED(status) ? 1000 + WTERMSIG(status) : WEXITSTATUS(status);
}

TEST(FailPoint, KillsAtItsHitAndAtNoOther) {
  EXPECT_EQ(ending_of([] { fail_point("here"); }), 7) << "none is armed";
  const auto come_to = [](int here) {
    arm_fail_point("here", 3);
    for (int i = 0; i < 5; ++i) fail_point("elsewhere");
    for (int i = 0; i < here; ++i) {
      if (fail_point_is_next("here") != (i == 2) || fail_point_is_next("elsewhere")) ::_exit(8);
      fail_point("here");
    }
  };
  EXPECT_EQ(ending_of([&] { come_to(2); }), 7);
  EXPECT_EQ(ending_of([&] { come_to(3); }), 1000 + SIGKILL);
}

}  // namespace
}  // namespace wsync
