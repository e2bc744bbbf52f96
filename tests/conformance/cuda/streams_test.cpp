#include "fixture.hpp"

namespace penstock::test::cuda_semantics {
namespace {

class CudaStreams : public CudaSemantics {};

TEST_F(CudaStreams, RunTheirOperationsInOrder) {
  constexpr unsigned rounds = 32;
  Pages results(1);
  results.register_pages(0, 1);
  const cudaStream_t stream = make_stream();
  constexpr std::size_t large = 8 << 20;  // a copy that runs for a while
  unsigned* const device = allocate(large);
  unsigned* const other = allocate(large);
  Hold hold(stream);  // so that all are enqueued when the first runs
  for (unsigned i = 0; i < rounds; ++i) {
    ASSERT_EQ(cudaMemsetAsync(device, 0xff, large, stream), cudaSuccess);
    write(device + large / sizeof(unsigned) - 1, i, stream);
    ASSERT_EQ(cudaMemcpyAsync(other, device, large, cudaMemcpyDeviceToDevice, stream), cudaSuccess);
    copy_out(results.words() + i, other + large / sizeof(unsigned) - 1, stream);
  }

  hold.release();
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);

  for (unsigned i = 0; i < rounds; ++i) EXPECT_EQ(results.words()[i], i);
}

TEST_F(CudaStreams, RunInParallel) {
  Pages result(1);
  result.register_pages(0, 1);
  const cudaStream_t held = make_stream(), other = make_stream();
  unsigned* const device = allocate();
  const Hold hold(held);

  write(device, 5, other);
  copy_out(result.words(), device, other);
  ASSERT_EQ(cudaStreamSynchronize(other), cudaSuccess);

  EXPECT_EQ(*result.words(), 5u);
  EXPECT_TRUE(hold.holds());
}

TEST_F(CudaStreams, TakeOperationsWithoutWaitingForThem) {
  Pages host(1);
  host.register_pages(0, 1);
  const cudaStream_t stream = make_stream(), waiting = make_stream();
  const cudaEvent_t event = make_event();
  unsigned *const device = allocate(), *const other = allocate();
  const Hold hold(stream);

  EXPECT_EQ(cudaMemsetAsync(device, 0, sizeof *device, stream), cudaSuccess);
  write(device, 1, stream);
  EXPECT_EQ(cudaMemcpyAsync(other, device, sizeof *device, cudaMemcpyDeviceToDevice, stream), cudaSuccess);
  copy_out(host.words(), device, stream);
  EXPECT_EQ(cudaEventRecord(event, stream), cudaSuccess);
  EXPECT_EQ(cudaStreamWaitEvent(waiting, event, 0), cudaSuccess);

  EXPECT_TRUE(hold.holds());
  EXPECT_EQ(*host.words(), 0u);
}

TEST_F(CudaStreams, ThatBlockAreWaitedForByTheDefaultStream) {
  const cudaStream_t blocking = make_stream(cudaStreamDefault);
  const cudaEvent_t event = make_event();
  Hold hold(blocking);

  recorded(event, cudaStream_t{});

  EXPECT_TRUE(stays_pending(event));
  hold.release();
  EXPECT_EQ(cudaEventSynchronize(event), cudaSuccess);
}

TEST_F(CudaStreams, ThatBlockWaitForTheDefaultStream) {
  for (const cudaStream_t default_stream : {cudaStream_t{}, cudaStreamLegacy}) {
    const cudaStream_t blocking = make_stream(cudaStreamDefault);
    const cudaEvent_t event = make_event();
    Hold hold(default_stream);

    recorded(event, blocking);

    EXPECT_TRUE(stays_pending(event));
    hold.release();
    EXPECT_EQ(cudaEventSynchronize(event), cudaSuccess);
  }
}

TEST_F(CudaStreams, ThatDoNotBlockAreIndependentOfTheDefaultStream) {
  const cudaStream_t other = make_stream(cudaStreamNonBlocking);
  unsigned* const device = allocate();
  {
    const Hold hold(other);
    write(device, 1, cudaStream_t{});
    EXPECT_EQ(cudaStreamSynchronize(cudaStream_t{}), cudaSuccess);
    EXPECT_TRUE(hold.holds());
  }
  const Hold hold(cudaStreamLegacy);
  write(device, 2, other);

  EXPECT_EQ(cudaStreamSynchronize(other), cudaSuccess);

  EXPECT_TRUE(hold.holds());
}

TEST_F(CudaStreams, AreAllWaitedForByDeviceSynchronize) {
  const cudaStream_t stream = make_stream(cudaStreamNonBlocking);
  const cudaEvent_t event = make_event();
  Hold hold(stream);
  recorded(event, stream);
  hold.release_after(milliseconds(20));

  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);

  EXPECT_EQ(cudaEventQuery(event), cudaSuccess);
}

TEST_F(CudaStreams, RunWhatTheyHaveAfterTheyAreDestroyed) {
  Pages result(1);
  result.register_pages(0, 1);
  const cudaStream_t stream = new_stream();
  const cudaEvent_t event = make_event();
  unsigned* const device = allocate();
  Hold hold(stream);
  write(device, 7, stream);
  copy_out(result.words(), device, stream);
  recorded(event, stream);

  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);

  EXPECT_TRUE(hold.holds()) << "it waited";
  EXPECT_TRUE(stays_pending(event));
  hold.release();
  EXPECT_EQ(cudaEventSynchronize(event), cudaSuccess);
  EXPECT_EQ(*result.words(), 7u);
}

}  // namespace
}  // namespace penstock::test::cuda_semantics
