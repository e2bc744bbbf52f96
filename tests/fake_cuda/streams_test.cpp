#include "fake_cuda/fixture.hpp"

#include <atomic>
#include <mutex>
#include <set>
#include <string>

namespace penstock::test::fake_cuda {
namespace {

class FakeCudaStreams : public FakeCuda {};

TEST_F(FakeCudaStreams, RunTheirOperationsInOrderWithEverySeed) {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    restart({.seed = seed});
    const cudaStream_t stream = make_stream();
    std::vector<int> order, wanted;
    for (int i = 0; i < 20; ++i) {
      wanted.push_back(i);
      ASSERT_EQ(enqueue(stream, [&order, i] { order.push_back(i); }), cudaSuccess);
    }

    ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);

    EXPECT_EQ(order, wanted);
  }
}

TEST_F(FakeCudaStreams, RunInParallelByThemselves) {
  const cudaStream_t first = make_stream(), second = make_stream();
  std::promise<void> reached;
  ASSERT_EQ(enqueue(first, [&] { reached.get_future().wait(); }), cudaSuccess);

  ASSERT_EQ(enqueue(second, [&] { reached.set_value(); }), cudaSuccess);

  EXPECT_EQ(cudaStreamSynchronize(first), cudaSuccess);
}

TEST_F(FakeCudaStreams, RunInAnOrderThatTheSeedChanges) {
  std::set<std::string> orders;
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    restart({.seed = seed});
    std::string order;
    std::mutex mutex;
    const cudaStream_t streams[] = {make_stream(), make_stream()};
    for (int i = 0; i < 6; ++i) {
      for (const char name : {'a', 'b'}) {
        ASSERT_EQ(enqueue(streams[name - 'a'],
                          [&, name] {
                            const std::lock_guard lock(mutex);
                            order += name;
                          }),
                  cudaSuccess);
      }
    }
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    orders.insert(order);
  }

  EXPECT_GT(orders.size(), 3u);
}

TEST_F(FakeCudaStreams, BlockAndAreBlockedByTheDefaultStreamUnlessTheyAreNonBlocking) {
  const cudaStream_t blocking = make_stream(cudaStreamDefault), other = make_stream();
  std::atomic<int> ran = 0;
  {
    const Gate gate(blocking);
    ASSERT_EQ(enqueue(nullptr, [&] { ++ran; }), cudaSuccess);
    let_streams_run();
    EXPECT_EQ(ran, 0) << "the default stream waits for the blocking one";
  }
  ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
  EXPECT_EQ(ran, 1);
  {
    const Gate gate(cudaStreamLegacy);
    ASSERT_EQ(enqueue(blocking, [&] { ++ran; }), cudaSuccess);
    let_streams_run();
    EXPECT_EQ(ran, 1) << "the blocking stream waits for the default one";
  }
  ASSERT_EQ(cudaStreamSynchronize(blocking), cudaSuccess);
  EXPECT_EQ(ran, 2);
  const Gate gate(other);
  ASSERT_EQ(enqueue(nullptr, [&] { ++ran; }), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
  EXPECT_EQ(ran, 3) << "the default stream does not wait for the non-blocking one";
}

TEST_F(FakeCudaStreams, RunWhatTheyHaveAfterTheyAreDestroyed) {
  const cudaStream_t stream = make_stream();
  bool ran = false;
  {
    Gate gate(stream);
    ASSERT_EQ(enqueue(stream, [&] { ran = true; }), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  }

  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorInvalidResourceHandle);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_TRUE(ran);
}

TEST_F(FakeCudaStreams, WaitForTheLastRecordAtTheTimeOfTheCall) {
  const cudaStream_t recorded = make_stream(), waiting = make_stream();
  const cudaEvent_t event = make_event();
  std::vector<int> order;
  Gate first(recorded);
  ASSERT_EQ(enqueue(recorded, [&] { order.push_back(1); }), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(event, recorded), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(waiting, event, 0), cudaSuccess);
  ASSERT_EQ(enqueue(waiting, [&] { order.push_back(2); }), cudaSuccess);
  Gate second(recorded);
  ASSERT_EQ(cudaEventRecord(event, recorded), cudaSuccess);
  let_streams_run();

  first.open();

  ASSERT_EQ(cudaStreamSynchronize(waiting), cudaSuccess);  // although the second gate is closed
  EXPECT_EQ(order, (std::vector<int>{1, 2}));
  EXPECT_EQ(cudaEventQuery(event), cudaErrorNotReady);
  second.open();
  EXPECT_EQ(cudaEventSynchronize(event), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(event), cudaSuccess);
}

TEST_F(FakeCudaStreams, DoNotWaitForAnEventThatWasNeverRecorded) {
  const cudaStream_t stream = make_stream();
  const cudaEvent_t event = make_event();

  EXPECT_EQ(cudaStreamWaitEvent(stream, event, 0), cudaSuccess);

  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(event), cudaSuccess);
  EXPECT_EQ(cudaEventSynchronize(event), cudaSuccess);
}

}  // namespace
}  // namespace penstock::test::fake_cuda
