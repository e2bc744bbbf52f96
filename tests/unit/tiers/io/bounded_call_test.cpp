#include "tiers/io/bounded_call.hpp"

#include <gtest/gtest.h>
#include <atomic>
#include <latch>
#include <memory>
#include <stdexcept>

namespace penstock::tiers {
namespace {

TEST(BoundedCall, ReturnsWhatTheCallReturns) {
  EXPECT_EQ(bounded_call<int>("test", "file", forever, [] { return Result<int>(7); }).value(), 7);
  const auto failed = bounded_call<int>("test", "file", std::chrono::seconds(60),
                                        [] { return Result<int>(Error(ErrorCode::no_space, "call")); });
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code(), ErrorCode::no_space);
}

TEST(BoundedCall, ThrowsWhatTheCallThrows) {
  const auto call = []() -> Result<int> { throw std::runtime_error("of an embedder's file system"); };

  EXPECT_THROW((void)bounded_call<int>("test", "file", std::chrono::seconds(60), call), std::runtime_error);
}

TEST(BoundedCall, TakesADeadlineOfTheEndOfTime) {
  EXPECT_TRUE(bounded_call<int>("test", "file", forever - TimePoint(1), [] { return Result<int>(7); }));
}

TEST(BoundedCall, AbandonsACallThatDoesNotReturnAndWhatItReturnsLater) {
  struct Shared {
    std::latch end{1};
    std::latch destroyed{1};
  };
  const auto shared = std::make_shared<Shared>();
  struct Value {
    explicit Value(std::shared_ptr<Shared> of) : shared(std::move(of)) {}
    ~Value() { shared->destroyed.count_down(); }
    std::shared_ptr<Shared> shared;
  };

  const auto result =
      bounded_call<std::unique_ptr<Value>>("Path::create", "/mnt/nvme0", std::chrono::milliseconds(20),
                                           [shared]() -> Result<std::unique_ptr<Value>> {
                                             shared->end.wait();
                                             return std::make_unique<Value>(shared);
                                           });

  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code(), ErrorCode::deadline_exceeded);
  EXPECT_NE(result.error().message().find("/mnt/nvme0"), std::string::npos);
  EXPECT_NE(result.error().message().find("abandoned"), std::string::npos);
  EXPECT_NE(result.error().message().find("20 ms without an answer"), std::string::npos);
  shared->end.count_down();
  shared->destroyed.wait();  // by the thread of the call
}

}  // namespace
}  // namespace penstock::tiers
