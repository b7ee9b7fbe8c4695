"""Random lives of an engine with three tiers: tokens are right and every block is counted once, whatever goes wrong."""

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from stratos.engine.core import EngineCore
from stratos.engine.fake.runner import FakeConfig, FakeRunner
from stratos.engine.settings import DiskTierConfig
from tests.support.crowded_machine import CrowdedMachine
from tests.support.examples import examples
from tests.support.worlds.engine_driver import CROWDED, make_request
from tests.support.worlds.engine_settings import scheduler_config
from tests.unit.engine.kv_disk.conftest import FILE_BYTES, KEY, OTHER_KEY


class DiskTierMachine(CrowdedMachine):
    """Prompts with common prefixes crowd three tiers; files are damaged, tenants forgotten, processes restarted."""

    @initialize(
        num_host_blocks=st.sampled_from([2, 9, 30]),
        num_files=st.sampled_from([3, 12, 500]),
        ratio=st.sampled_from([0.4, 1.0]),
    )
    def start(self, num_host_blocks, num_files, ratio):
        self.folder = Path(tempfile.mkdtemp(prefix="stratos-kv-test-"))
        self.num_host_blocks, self.keys = num_host_blocks, {}
        self.disk = DiskTierConfig(directory=self.folder, max_bytes=num_files * FILE_BYTES, max_tenant_ratio=ratio)
        self.make()

    def make(self):
        fake = FakeConfig(num_blocks=8, block_size=4, num_host_blocks=self.num_host_blocks, overlap=self.overlap)
        config = scheduler_config(max_num_seqs=4, swap_costs=False, **CROWDED)
        self.engine = EngineCore(FakeRunner(fake), config, disk=self.disk)

    @rule(kind=st.integers(0, 2), length=st.integers(1, 18), max_tokens=st.integers(1, 9))
    def add(self, kind, length, max_tokens):
        self.count += 1
        prompt = [100 * kind + i for i in range(length)]
        request = make_request(prompt, f"r{self.count}", max_tokens=max_tokens, arrival_s=float(self.count))
        tenant = f"tenant {kind}"
        terms = replace(request.terms, tenant=tenant, cache_salt=tenant.encode(), kv_key=self.keys.get(tenant, KEY))
        request = replace(request, terms=terms)
        self.engine.load_blocks(request.prompt_ids, terms)
        self.engine.add(request)
        self.requests[request.key] = request

    @rule()
    def steps(self):
        for _ in range(4):
            self.advance()

    @rule()
    def write(self):
        self.engine.disk.write()
        status = self.engine.status().disk
        self.engine.disk.index.verify_orders()
        assert len(self.files()) == status.blocks.stored

    @rule(kind=st.integers(0, 2), key=st.sampled_from([KEY, OTHER_KEY, b""]))
    def forget(self, kind, key):
        self.engine.forget_tenant(f"tenant {kind}")
        self.keys[f"tenant {kind}"] = key

    @precondition(lambda self: self.engine is not None and self.files())
    @rule(data=st.data(), bit=st.integers(0, 8 * FILE_BYTES - 1))
    def damage(self, data, bit):
        path = data.draw(st.sampled_from(self.files()))
        content = bytearray(path.read_bytes())
        content[bit // 8] ^= 1 << bit % 8
        path.write_bytes(content)

    @rule()
    def restart(self):
        for key in self.requests:
            self.engine.abort(key)
        self.engine.disk.close()
        self.make()

    def files(self):
        return sorted(self.folder.glob("*/*/*.kv"))

    def teardown(self):
        super().teardown()
        if self.engine is not None:
            self.engine.disk.close()
            shutil.rmtree(self.folder)


class OverlappingDiskTierMachine(DiskTierMachine):
    overlap = True


TestDiskTier = DiskTierMachine.TestCase
TestDiskTier.settings = settings(max_examples=examples(20), stateful_step_count=30, deadline=None)
TestOverlappingDiskTier = OverlappingDiskTierMachine.TestCase
TestOverlappingDiskTier.settings = settings(max_examples=examples(20), stateful_step_count=30, deadline=None)
