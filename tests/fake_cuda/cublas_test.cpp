#include "fake_cuda/fixture.hpp"

#include <cublas_v2.h>
#include <limits>

namespace penstock::test::fake_cuda {
namespace {

class FakeCublas : public FakeCuda {
 protected:
  static cublasHandle_t make_handle() {
    cublasHandle_t handle = nullptr;
    EXPECT_EQ(cublasCreate(&handle), CUBLAS_STATUS_SUCCESS);
    return handle;
  }
  static float* floats(const std::vector<float>& values) {
    auto* const address = reinterpret_cast<float*>(allocate(values.size() * sizeof(float)));
    std::memcpy(bytes(address, values.size() * sizeof(float)), values.data(), values.size() * sizeof(float));
    return address;
  }
  static std::vector<float> read(const float* address, std::size_t count) {
    std::vector<float> values(count);
    std::memcpy(values.data(), bytes(address, count * sizeof(float)), count * sizeof(float));
    return values;
  }
};

/// The arguments of a product of two matrices of 2 x 3 and 3 x 2 elements.
struct Gemm {
  cublasOperation_t op_a = CUBLAS_OP_N, op_b = CUBLAS_OP_N;
  int m = 2, n = 2, k = 3;
  float alpha = 1, beta = 0;
  const float* a = nullptr;
  int lda = 2;
  long long stride_a = 0;
  const float* b = nullptr;
  int ldb = 3;
  long long stride_b = 0;
  float* c = nullptr;
  int ldc = 2;
  long long stride_c = 4;
  int batches = 1;

  [[nodiscard]] cublasStatus_t run(cublasHandle_t handle) const {
    return cublasSgemmStridedBatched(handle, op_a, op_b, m, n, k, &alpha, a, lda, stride_a, b, ldb, stride_b,
                                     &beta, c, ldc, stride_c, batches);
  }
};

// In columns: a = (1 3 5; 2 4 6), b = (1 4; 2 5; 3 6).
const std::vector<float> six = {1, 2, 3, 4, 5, 6};

TEST_F(FakeCublas, MultipliesMatricesInColumnMajorOrder) {
  const cublasHandle_t handle = make_handle();
  const float *const a = floats(six), *const b = floats(six);
  float* const c = floats({1, 1, 1, 1});

  EXPECT_EQ((Gemm{.alpha = 2, .beta = 10, .a = a, .b = b, .c = c}.run(handle)), CUBLAS_STATUS_SUCCESS);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);

  EXPECT_EQ(read(c, 4), (std::vector<float>{54, 66, 108, 138}));
}

TEST_F(FakeCublas, TransposesOperands) {
  const cublasHandle_t handle = make_handle();
  const float *const a = floats(six), *const b = floats(six);
  float* const c = floats({0, 0, 0, 0});

  EXPECT_EQ((Gemm{.op_a = CUBLAS_OP_T, .op_b = CUBLAS_OP_T, .a = a, .lda = 3, .b = b, .ldb = 2, .c = c}.run(
                handle)),
            CUBLAS_STATUS_SUCCESS);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);

  EXPECT_EQ(read(c, 4), (std::vector<float>{22, 49, 28, 64}));
}

TEST_F(FakeCublas, MultipliesABatchInsideOfLargerMatrices) {
  const cublasHandle_t handle = make_handle();
  const float* const a = floats({1, -1, 2, -1, 3, -1, 4});  // of 1 x 1 elements, two apart
  float* const c = floats({0, 7, 0, 7, 0, 7, 0});

  EXPECT_EQ((Gemm{.m = 1,
                  .n = 1,
                  .k = 2,
                  .a = a,
                  .lda = 2,
                  .stride_a = 2,
                  .b = a,
                  .ldb = 2,
                  .stride_b = 0,
                  .c = c,
                  .ldc = 1,
                  .stride_c = 2,
                  .batches = 3}
                 .run(handle)),
            CUBLAS_STATUS_SUCCESS);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);

  // b is (1, -1): a column, of which the second element is the neighbour.
  EXPECT_EQ(read(c, 7), (std::vector<float>{-1, 7, -1, 7, -1, 7, 0}));
}

TEST_F(FakeCublas, ReadsNoResultThatBetaLeavesOut) {
  const cublasHandle_t handle = make_handle();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float* const a = floats(six);
  float* const c = floats({nan, nan, nan, nan});

  EXPECT_EQ((Gemm{.a = a, .b = a, .c = c}.run(handle)), CUBLAS_STATUS_SUCCESS);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);

  EXPECT_EQ(read(c, 4), (std::vector<float>{22, 28, 49, 64}));
}

TEST_F(FakeCublas, RunsWhenItsStreamGetsThere) {
  const cublasHandle_t handle = make_handle();
  const cudaStream_t stream = make_stream();
  const float* const a = floats(six);
  float* const c = floats({0, 0, 0, 0});
  Gate gate(stream);
  ASSERT_EQ(cublasSetStream(handle, stream), CUBLAS_STATUS_SUCCESS);

  EXPECT_EQ((Gemm{.a = a, .b = a, .c = c}.run(handle)), CUBLAS_STATUS_SUCCESS);

  let_streams_run();
  EXPECT_EQ(read(c, 4), (std::vector<float>{0, 0, 0, 0}));
  gate.open();
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(read(c, 4), (std::vector<float>{22, 28, 49, 64}));
  EXPECT_EQ(default_stream_operations(), 0u);
}

TEST_F(FakeCublas, UsesTheDefaultStreamUntilItHasAnother) {
  const float* const a = floats(six);
  float* const c = floats({0, 0, 0, 0});

  EXPECT_EQ((Gemm{.a = a, .b = a, .c = c}.run(make_handle())), CUBLAS_STATUS_SUCCESS);

  EXPECT_EQ(default_stream_operations(), 1u);
}

TEST_F(FakeCublas, RefusesWhatCublasRefuses) {
  const cublasHandle_t handle = make_handle();
  const float* const a = floats(six);
  float* const c = floats({0, 0, 0, 0});
  const Gemm good{.a = a, .b = a, .c = c};
  std::vector<Gemm> bad(9, good);
  bad[0].m = -1;
  bad[1].n = -1;
  bad[2].k = -1;
  bad[3].batches = -1;
  bad[4].lda = 1;
  bad[5].ldb = 2;
  bad[6].ldc = 1;
  bad[7].op_a = CUBLAS_OP_T;  // needs lda = 3
  bad[8].op_b = static_cast<cublasOperation_t>(7);

  for (std::size_t i = 0; i < bad.size(); ++i)
    EXPECT_EQ(bad[i].run(handle), CUBLAS_STATUS_INVALID_VALUE) << i;
  EXPECT_EQ(good.run(nullptr), CUBLAS_STATUS_NOT_INITIALIZED);
  EXPECT_EQ(cublasCreate(nullptr), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(good.run(handle), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(cublasDestroy(handle), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(good.run(handle), CUBLAS_STATUS_NOT_INITIALIZED);
  EXPECT_EQ(cublasSetStream(handle, nullptr), CUBLAS_STATUS_NOT_INITIALIZED);
  EXPECT_EQ(cublasDestroy(handle), CUBLAS_STATUS_NOT_INITIALIZED);
}

TEST_F(FakeCublas, FaultsOutsideOfAnAllocation) {
  for (const int outside : {0, 1, 2}) {
    restart();
    const cublasHandle_t handle = make_handle();
    Gemm product{.a = floats(six), .b = floats(six), .c = floats({0, 0, 0, 0})};
    if (outside == 0) product.a += 1;
    if (outside == 1) product.b += 1;
    if (outside == 2) product.c += 1;

    EXPECT_EQ(product.run(handle), CUBLAS_STATUS_SUCCESS);

    EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
    EXPECT_EQ(product.run(handle), CUBLAS_STATUS_EXECUTION_FAILED);
  }
}

TEST_F(FakeCublas, HasHandlesThatRestartEndsAndMemoryThatDestroyFrees) {
  const cublasHandle_t before = make_handle();
  restart();
  EXPECT_EQ(cublasDestroy(before), CUBLAS_STATUS_NOT_INITIALIZED);

  const cublasHandle_t handle = make_handle();
  EXPECT_EQ(live().allocations, 1u);
  EXPECT_EQ(cublasDestroy(handle), CUBLAS_STATUS_SUCCESS);

  EXPECT_EQ(live(), Live{});
  EXPECT_EQ(count().device_synchronizations(), 1u);
}

}  // namespace
}  // namespace penstock::test::fake_cuda
