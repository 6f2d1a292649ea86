// The question of libzmq about a key: only the one that this release expects is understood.
#include "shared/control/zmq/zap.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "shared/control/keys/key_file.h"

namespace wsync::control {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> question() {
  return {"1.0", "77", "wsync", "10.0.0.1", "", "CURVE", std::string(kKeyBytes, '\x01')};
}

TEST(Zap, AQuestionHasTheKeyInItsTextForm) {
  const auto request = parse_zap_request(question());
  ASSERT_TRUE(request.has_value()) << request.error().message();
  EXPECT_EQ(request->id, "77");
  EXPECT_EQ(request->address, "10.0.0.1");
  const auto bytes = decode_key(request->public_key);
  ASSERT_TRUE(bytes.has_value());
  for (const std::byte b : *bytes) EXPECT_EQ(b, std::byte{1});
}

TEST(Zap, AnyOtherQuestionIsRefusedWithWhatWasExpected) {
  const auto refused = [](std::vector<std::string> parts, const std::string& what) {
    const auto request = parse_zap_request(parts);
    ASSERT_FALSE(request.has_value()) << what;
    EXPECT_EQ(request.error().code(), ErrorCode::kInvalidInput);
    EXPECT_THAT(request.error().message(), HasSubstr(what));
  };
  const auto with = [](std::size_t part, std::string text) {
    std::vector<std::string> parts = question();
    parts[part] = std::move(text);
    return parts;
  };
  refused({}, "version: expected 1.0, found nothing");
  refused(with(0, "2.0"), "version: expected 1.0, found 2.0");
  refused(with(2, ""), "domain: expected wsync");
  refused(with(2, "other"), "domain: expected wsync, found other");
  refused(with(5, "NULL"), "mechanism: expected CURVE, found NULL");
  refused(with(5, "PLAIN"), "mechanism: expected CURVE, found PLAIN");
  refused(with(6, std::string(kKeyBytes - 1, 'k')), "key: expected 32 bytes, found 31");
  refused(with(6, std::string(kKeyBytes + 1, 'k')), "key: expected 32 bytes, found 33");
  std::vector<std::string> parts = question();
  parts.pop_back();
  refused(parts, "parts: expected 7, found 6");
  parts = question();
  parts.emplace_back("password");
  refused(parts, "parts: expected 7, found 8");
}

TEST(Zap, OnlyAnAdmissionNamesTheUser) {
  EXPECT_THAT(zap_reply("7", ZapStatus::kAdmitted, "key"),
              ElementsAre("1.0", "7", "200", "OK", "key", ""));
  EXPECT_THAT(zap_reply("7", ZapStatus::kRefused, "key"),
              ElementsAre("1.0", "7", "400", HasSubstr("not listed"), "", ""));
  EXPECT_THAT(zap_reply("", ZapStatus::kBroken, "key"),
              ElementsAre("1.0", "", "500", HasSubstr("not understood"), "", ""));
}

}  // namespace
}  // namespace wsync::control
