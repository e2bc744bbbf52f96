#include "parallel/task_thread.hpp"

#include <gtest/gtest.h>
#include <atomic>
#include <thread>
#include <vector>

namespace penstock::parallel {
namespace {

TEST(TaskThread, RunsTasksInOrderOnAThreadOfItsOwn) {
  std::vector<int> order;
  std::vector<std::thread::id> threads;
  {
    auto thread = TaskThread::create("test").value();
    for (int i = 0; i < 100; ++i) {
      thread->post([&, i] {
        order.push_back(i);
        threads.push_back(std::this_thread::get_id());
      });
    }
    thread->post({});
  }
  ASSERT_EQ(order.size(), 100u);  // the destructor has waited
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[static_cast<std::size_t>(i)], i);
  for (const auto& id : threads) EXPECT_EQ(id, threads[0]);
  EXPECT_NE(threads[0], std::this_thread::get_id());
}

TEST(TaskThread, RunsATaskThatATaskPosts) {
  std::atomic<bool> ran{false};
  {
    auto thread = TaskThread::create("test").value();
    thread->post([&] { thread->post([&] { ran = true; }); });
    while (!ran) std::this_thread::yield();
  }
  EXPECT_TRUE(ran);
}

}  // namespace
}  // namespace penstock::parallel
