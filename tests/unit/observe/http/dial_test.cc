#include "shared/observe/http/dial.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace wsync::http {
namespace {

using testing::HasSubstr;

TEST(ParseUrl, NamesAndAddresses) {
  const auto parsed = [](const std::string& url) {
    const auto endpoint = parse_url(url);
    EXPECT_TRUE(endpoint) << url << ": " << endpoint.error().message();
    return endpoint.value_or(Endpoint{});
  };
  EXPECT_EQ(parsed("http://localhost:8000"), (Endpoint{"localhost", 8000}));
  EXPECT_EQ(parsed("http://engine-1.my_rack.example:1"), (Endpoint{"engine-1.my_rack.example", 1}));
  EXPECT_EQ(parsed("http://127.0.0.1:65535"), (Endpoint{"127.0.0.1", 65535}));
  EXPECT_EQ(parsed("http://[::1]:80"), (Endpoint{"::1", 80}));
  EXPECT_EQ(parsed("http://[fe80::1%eth0]:80"), (Endpoint{"fe80::1%eth0", 80}));
}

TEST(ParseUrl, WhatIsWrongIsNamed) {
  const std::pair<std::string, std::string> cases[] = {
      {"", "'': it does not begin with http://"},
      {"localhost:80", "it does not begin with http://"},
      {"https://localhost:80", "it does not begin with http://"},
      {"http://localhost", "it has no port"},
      {"http://[::1]", "it has no port"},
      {"http://[::1", "its bracket is not closed"},
      {"http://::1:80", "its host is neither a name nor an address"},
      {"http://:80", "its host is neither a name nor an address"},
      {"http://[]:80", "its host is neither a name nor an address"},
      {"http://a b:80", "its host is neither a name nor an address"},
      {"http://a\r\nX: y:80", "its host is neither a name nor an address"},
      {"http://user@host:80", "its host is neither a name nor an address"},
      {"http://" + std::string(256, 'a') + ":80", "its host is neither a name nor an address"},
      {"http://a:", "its port is not a number from 1 to 65535"},
      {"http://a:0", "its port is not a number from 1 to 65535"},
      {"http://a:65536", "its port is not a number from 1 to 65535"},
      {"http://a:-1", "its port is not a number from 1 to 65535"},
      {"http://a:80/", "there is text after its port"},
      {"http://a:80x", "there is text after its port"},
  };
  for (const auto& [url, why] : cases) {
    const auto endpoint = parse_url(url);
    ASSERT_FALSE(endpoint) << url;
    EXPECT_EQ(endpoint.error().code(), ErrorCode::kInvalidInput);
    EXPECT_THAT(endpoint.error().message(), HasSubstr(why));
    EXPECT_THAT(endpoint.error().message(), HasSubstr("; expected http://HOST:PORT"));
  }
}

}  // namespace
}  // namespace wsync::http
