// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/model/request.hpp>

#include <catch2/catch.hpp>

using namespace dynbatch;

TEST_CASE("cache scopes differ by each field, and absent differs from zero", "[model]") {
  const CacheScope plain;
  CHECK(plain == CacheScope{});

  CacheScope other;
  other.model_epoch = 1;
  CHECK_FALSE(other == plain);

  CacheScope zero_tenant;
  zero_tenant.has_tenant_salt = true;
  CHECK_FALSE(zero_tenant == plain);

  CacheScope adapter;
  adapter.has_adapter = true;
  CHECK_FALSE(adapter == plain);
  CacheScope newer = adapter;
  newer.adapter_version = 1;
  CHECK_FALSE(newer == adapter);
  CacheScope another = adapter;
  another.adapter_id = 1;
  CHECK_FALSE(another == adapter);
}

TEST_CASE("values of absent parts of a scope don't count", "[model]") {
  CacheScope a;
  CacheScope b;
  a.tenant_salt = 5;
  b.adapter_id = 6;
  b.adapter_version = 7;
  CHECK(a == b);
}

TEST_CASE("a default request has no deadline, no limit and no service level", "[model]") {
  const Request request;
  CHECK(request.max_new_tokens == kOpenEnded);
  CHECK(request.start_by == kNever);
  CHECK(request.finish_by == kNever);
  CHECK(request.slo.ttft == kUnbounded);
  CHECK(request.slo.tpot == kUnbounded);
  CHECK(request.num_samples == 1);
}
