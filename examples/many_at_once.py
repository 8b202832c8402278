"""Thousands of operations in flight share commits.   python examples/many_at_once.py [URL]"""

import asyncio
import sys
import time

import imap_wal

url = sys.argv[1] if len(sys.argv) > 1 else "file:///tmp/imap-wal-example-async"


async def main() -> None:
    async with imap_wal.aopen(url, node="example") as store:
        readings = store.map("readings")
        start = time.perf_counter()
        await asyncio.gather(
            *(
                readings.set(f"sensor-{number}", {"celsius": number % 40})
                for number in range(10_000)
            )
        )
        seconds = time.perf_counter() - start
        print(
            "10,000 changes, each on disk before it was acknowledged: "
            f"{10_000 / seconds:,.0f} a second"
        )


asyncio.run(main())
