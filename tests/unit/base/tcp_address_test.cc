#include "shared/base/tcp_address.h"

#include <gtest/gtest.h>
#include <netinet/in.h>

namespace wsync {
namespace {

TEST(TcpAddress, EachFormIsReadAndWritten) {
  for (const char* text : {"tcp://127.0.0.1:7000", "tcp://10.0.0.1:0", "tcp://0.0.0.0:65535",
                           "tcp://[::1]:7000", "tcp://[fd00::7]:7000", "tcp://trainer0:7000",
                           "tcp://node-7.rack_3.example.org:7000", "tcp://7up:1"})
    EXPECT_EQ(parse_tcp_address(text)->to_string(), text);
  EXPECT_EQ(parse_tcp_address("tcp://localhost:7")->to_string(), "tcp://127.0.0.1:7");
}

TEST(TcpAddress, EverythingElseIsRefused) {
  for (const char* text :
       {"", "127.0.0.1:1", "ipc:///run/x", "tcp://127.0.0.1", "tcp://127.0.0.1:x",
        "tcp://127.0.0.1:", "tcp://127.0.0.1:70000", "tcp://127.0.0.1:-1", "tcp://:1", "tcp://[]:1",
        "tcp://::1:7", "tcp://[10.0.0.1]:1", "tcp://[::1:7", "tcp://1.2.3:7", "tcp://300.1.1.1:7",
        "tcp://-a:7", "tcp://a b:7", "tcp://a/b:7", "tcp://fe80::1%eth0:7"})
    EXPECT_EQ(parse_tcp_address(text).error().code(), ErrorCode::kInvalidInput) << text;
  EXPECT_FALSE(parse_tcp_address("tcp://" + std::string(254, 'a') + ":7").has_value());
}

TEST(TcpAddress, LoopbackAndAnyAreKnown) {
  for (const char* text : {"tcp://127.0.0.1:1", "tcp://127.9.9.9:1", "tcp://[::1]:1"})
    EXPECT_TRUE(parse_tcp_address(text)->is_loopback()) << text;
  // A name is never taken for loopback, whatever it means here.
  for (const char* text : {"tcp://128.0.0.1:1", "tcp://[::2]:1", "tcp://trainer0:1"})
    EXPECT_FALSE(parse_tcp_address(text)->is_loopback()) << text;
  for (const char* text : {"tcp://0.0.0.0:1", "tcp://[::]:1"})
    EXPECT_TRUE(parse_tcp_address(text)->is_any()) << text;
  for (const char* text : {"tcp://0.0.0.1:1", "tcp://[::1]:1", "tcp://any:1"})
    EXPECT_FALSE(parse_tcp_address(text)->is_any()) << text;
}

TEST(TcpAddress, TheKernelGetsAddressesAndNoNames) {
  const auto v4 = parse_tcp_address("tcp://10.1.2.3:258")->numeric();
  ASSERT_TRUE(v4.has_value());
  const auto& ipv4 = reinterpret_cast<const sockaddr_in&>(*v4);
  EXPECT_EQ(ipv4.sin_family, AF_INET);
  EXPECT_EQ(ntohl(ipv4.sin_addr.s_addr), 0x0a010203U);
  EXPECT_EQ(ntohs(ipv4.sin_port), 258);
  const auto v6 = parse_tcp_address("tcp://[fd00::1]:258")->numeric();
  ASSERT_TRUE(v6.has_value());
  EXPECT_EQ(v6->ss_family, AF_INET6);
  EXPECT_FALSE(parse_tcp_address("tcp://trainer0:1")->numeric().has_value());
}

TEST(TcpAddress, AHostAloneNeedsNoBrackets) {
  EXPECT_EQ(*parse_host("fd00::1"), "fd00::1");
  EXPECT_EQ(*parse_host("[fd00::1]"), "fd00::1");
  EXPECT_EQ(*parse_host("10.0.0.1"), "10.0.0.1");
  EXPECT_EQ(*parse_host("host7"), "host7");
  EXPECT_EQ(*parse_host("localhost"), "127.0.0.1");
  for (const char* text : {"", "10.0.0.1:7", "tcp://host7", "host7:7", "a b"})
    EXPECT_FALSE(parse_host(text).has_value()) << text;
}

TEST(SplitAddresses, CommasSeparateAndSpacesDoNotCount) {
  using List = std::vector<std::string_view>;
  EXPECT_EQ(split_addresses("tcp://a:1"), (List{"tcp://a:1"}));
  EXPECT_EQ(split_addresses("tcp://a:1, tcp://[::1]:2 ,tcp://c:3"),
            (List{"tcp://a:1", "tcp://[::1]:2", "tcp://c:3"}));
  EXPECT_EQ(split_addresses("ipc:///run/a,b"), (List{"ipc:///run/a,b"})) << "a path may have one";
  EXPECT_EQ(split_addresses(""), (List{""}));
  EXPECT_EQ(split_addresses("a,"), (List{"a", ""}));
}

}  // namespace
}  // namespace wsync
