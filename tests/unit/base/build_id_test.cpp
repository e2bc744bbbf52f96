#include "base/build_id.hpp"

#include <gtest/gtest.h>
#include <cstdio>
#include <memory>
#include <string>

namespace penstock {
namespace {

// The program contains the library, so that its ID is the one that the linker wrote into the program.
TEST(BuildId, IsThatOfTheFileOnDisk) {
  const auto file =
      std::unique_ptr<std::FILE, int (*)(std::FILE*)>(std::fopen("/proc/self/exe", "rb"), &std::fclose);
  ASSERT_NE(file, nullptr);
  std::string bytes;
  for (int c = 0; (c = std::fgetc(file.get())) != EOF;) bytes += static_cast<char>(c);
  const std::string id = build_id();
  ASSERT_GE(id.size(), 16u);
  std::string binary;
  for (std::size_t i = 0; i < id.size(); i += 2)
    binary += static_cast<char>(std::stoi(id.substr(i, 2), nullptr, 16));
  EXPECT_NE(bytes.find(std::string("GNU\0", 4) + binary), std::string::npos) << id;
}

}  // namespace
}  // namespace penstock
