-------------------------------- MODULE Ring --------------------------------
(***************************************************************************)
(* The ring with parking: the same protocol as spec/models/ring.py, action  *)
(* for action and under the same names.  Stores pass through a store buffer *)
(* (x86, TSO).  Positions grow without bound; View, which TLC uses to tell  *)
(* states apart, lowers them all by the smallest, as only differences       *)
(* matter.                                                                  *)
(***************************************************************************)
EXTENDS Integers, Sequences, FiniteSets

CONSTANTS
    ReaderCount, Capacity,
    WithShutdown, WithLeave, WithDeaths, WithRejoin, WithSpurious, WithSlices

VARIABLES
    writer,     \* [step, waking, pos, buf]
    reader,     \* per reader: [step, pos, buf, closed, shut]
    members,    \* the writer's private mask
    published,  \* the published position in memory
    park,       \* per process: its park word, 1 or 0
    cursor,     \* per reader: its cursor in memory, 0 if not counted
    counted     \* the readers whose cursors count for room

vars == <<writer, reader, members, published, park, cursor, counted>>

Readers == 0..(ReaderCount - 1)
TheWriter == ReaderCount  \* the writer's place in `park`

Dead == {"dead", "dead waker"}
Left == {"left wake", "left futex wake", "gone"}
WithoutPosition == Dead \union Left \union {"joining"}
BetweenRecords == {"idle", "reserve", "unpark"}

Fresh(step, pos) == [step |-> step, pos |-> pos, buf |-> <<>>, closed |-> FALSE, shut |-> 0]
HasRoom == \A r \in members \intersect counted : writer.pos - cursor[r] < Capacity

Init ==
    /\ writer = [step |-> "idle", waking |-> 0, pos |-> 0, buf |-> <<>>]
    /\ reader = [r \in Readers |-> Fresh("idle", 0)]
    /\ members = Readers /\ published = 0 /\ counted = Readers
    /\ park = [p \in 0..TheWriter |-> 0] /\ cursor = [r \in Readers |-> 0]

Last(buffer, cell, otherwise) ==
    LET places == {i \in DOMAIN buffer : buffer[i][1] = cell}
    IN IF places = {} THEN otherwise ELSE buffer[CHOOSE i \in places : \A j \in places : j <= i][2]

(* ---- the writer ---- *)

Go(step) == [writer EXCEPT !.step = step, !.waking = 0]
GoAndStore(step, cell, value) == [Go(step) EXCEPT !.buf = Append(@, <<cell, value>>)]
WriterOnly == UNCHANGED <<reader, members, published, park, cursor, counted>>
WriterMoves(from, to) == writer.step = from /\ writer' = Go(to) /\ WriterOnly

CallEnqueue == WriterMoves("idle", "reserve")
Reserve == HasRoom /\ WriterMoves("reserve", "write")
FindNoRoom == ~HasRoom /\ WriterMoves("reserve", "park")
ParkWriter == writer.step = "park" /\ writer' = GoAndStore("park fence", "park word", 1) /\ WriterOnly
FenceParkedWriter == writer.buf = <<>> /\ WriterMoves("park fence", "recheck")
RecheckRoom ==
    LET somebodyLeft == \E r \in members : reader[r].step \in Left
    IN WriterMoves("recheck", IF HasRoom THEN "unpark to write" ELSE IF somebodyLeft THEN "unpark" ELSE "sleep")
SleepWriter == writer.buf = <<>> /\ WriterMoves("sleep", IF park[TheWriter] = 1 THEN "asleep" ELSE "reserve")
WakeWriterSpuriously == WriterMoves("asleep", "unpark")
EndWriterSlice ==
    /\ writer.step = "asleep" /\ writer' = Go("unpark")
    /\ reader' = [r \in Readers |-> IF reader[r].step = "dead waker" THEN Fresh("dead", 0) ELSE reader[r]]
    /\ UNCHANGED <<members, published, park, cursor, counted>>
UnparkWriter ==
    /\ writer.step \in {"unpark", "unpark to write"}
    /\ writer' = GoAndStore(IF writer.step = "unpark" THEN "reserve" ELSE "write", "park word", 0)
    /\ WriterOnly
Write == WriterMoves("write", "publish")
Publish ==
    /\ writer.step = "publish"
    /\ writer' = [GoAndStore("wake fence", "published", writer.pos + 1) EXCEPT !.pos = @ + 1]
    /\ WriterOnly
FencePublished == writer.buf = <<>> /\ WriterMoves("wake fence", "wake")

Next1 == IF writer.waking + 1 < ReaderCount
         THEN [writer EXCEPT !.step = "wake", !.waking = @ + 1]
         ELSE Go("idle")
PassRunningReader == writer.step = "wake" /\ park[writer.waking] = 0 /\ writer' = Next1 /\ WriterOnly
TakeReaderFlag ==
    /\ writer.step = "wake" /\ park[writer.waking] = 1 /\ writer.buf = <<>>
    /\ writer' = [writer EXCEPT !.step = "futex wake"] /\ park' = [park EXCEPT ![writer.waking] = 0]
    /\ UNCHANGED <<reader, members, published, cursor, counted>>
FutexWake(r) == IF reader[r].step = "asleep" THEN [reader EXCEPT ![r].step = "look"] ELSE reader
WakeReader ==
    /\ writer.step = "futex wake" /\ writer' = Next1 /\ reader' = FutexWake(writer.waking)
    /\ UNCHANGED <<members, published, park, cursor, counted>>

Without(r) ==
    /\ members' = members \ {r} /\ counted' = counted \ {r} /\ cursor' = [cursor EXCEPT ![r] = 0]
    /\ UNCHANGED <<writer, reader, published>>
DropDead(r) ==
    /\ r \in members /\ reader[r].step \in Dead /\ writer.step \in BetweenRecords
    /\ Without(r) /\ park' = [park EXCEPT ![r] = 0]
DropLeft(r) ==
    /\ r \in members /\ reader[r].step \in Left /\ writer.step \in BetweenRecords
    /\ Without(r) /\ UNCHANGED park
Admit(r) ==
    /\ reader[r].step = "joining" /\ r \notin members /\ writer.step = "idle" /\ writer.buf = <<>>
    /\ members' = members \union {r} /\ counted' = counted \union {r}
    /\ reader' = [reader EXCEPT ![r] = Fresh("idle", writer.pos)] /\ cursor' = [cursor EXCEPT ![r] = writer.pos]
    /\ UNCHANGED <<writer, published, park>>
FlushWriter ==
    /\ writer.buf # <<>> /\ writer' = [writer EXCEPT !.buf = Tail(@)]
    /\ LET store == Head(writer.buf) IN
       IF store[1] = "park word"
       THEN park' = [park EXCEPT ![TheWriter] = store[2]] /\ UNCHANGED published
       ELSE published' = store[2] /\ UNCHANGED park
    /\ UNCHANGED <<reader, members, cursor, counted>>
WriterDeath ==
    /\ writer.step # "dead" /\ writer' = [Go("dead") EXCEPT !.buf = <<>>]
    /\ published' = Last(writer.buf, "published", published)
    /\ park' = [park EXCEPT ![TheWriter] = 0]
    /\ UNCHANGED <<reader, members, cursor, counted>>

(* ---- the readers ---- *)

ReaderOnly == UNCHANGED <<writer, members, published, park, cursor, counted>>
ReaderMoves(r, from, to) == reader[r].step = from /\ reader' = [reader EXCEPT ![r].step = to] /\ ReaderOnly
Stores(r, step, cell, value) == [reader EXCEPT ![r].step = step, ![r].buf = Append(@, <<cell, value>>)]
Something(r) == published > reader[r].pos

CallDequeue(r) == ~reader[r].closed /\ ReaderMoves(r, "idle", "look")
SeeClosed(r) == reader[r].closed /\ ReaderMoves(r, "look", "end")
SeeRecord(r) == ~reader[r].closed /\ Something(r) /\ ReaderMoves(r, "look", "read")
SeeNothing(r) == ~reader[r].closed /\ ~Something(r) /\ ReaderMoves(r, "look", "park")
ParkReader(r) == reader[r].step = "park" /\ reader' = Stores(r, "park fence", "park word", 1) /\ ReaderOnly
FenceParkedReader(r) == reader[r].buf = <<>> /\ ReaderMoves(r, "park fence", "recheck")
RecheckRecord(r) == ReaderMoves(r, "recheck", IF Something(r) \/ reader[r].closed THEN "unpark" ELSE "sleep")
SleepReader(r) == reader[r].buf = <<>> /\ ReaderMoves(r, "sleep", IF park[r] = 1 THEN "asleep" ELSE "look")
WakeReaderSpuriously(r) == ReaderMoves(r, "asleep", "unpark")
EndReaderSlice(r) == ReaderMoves(r, "asleep", IF writer.step = "dead" THEN "last look" ELSE "unpark")
LastLook(r) == ReaderMoves(r, "last look", IF Something(r) THEN "unpark" ELSE "writer died")
UnparkReader(r) == reader[r].step = "unpark" /\ reader' = Stores(r, "look", "park word", 0) /\ ReaderOnly
Read(r) == ReaderMoves(r, "read", "advance")
Advance(r) ==
    /\ reader[r].step = "advance"
    /\ reader' = [Stores(r, "cursor fence", "cursor", reader[r].pos + 1) EXCEPT ![r].pos = @ + 1]
    /\ ReaderOnly
FenceCursor(r) == reader[r].buf = <<>> /\ ReaderMoves(r, "cursor fence", "wake")

PassRunningWriter(r) ==
    /\ reader[r].step \in {"wake", "left wake"} /\ park[TheWriter] = 0
    /\ reader' = [reader EXCEPT ![r].step = IF @ = "wake" THEN "idle" ELSE "gone"]
    /\ ReaderOnly
TakeWriterFlag(r) ==
    /\ reader[r].step \in {"wake", "left wake"} /\ park[TheWriter] = 1 /\ reader[r].buf = <<>>
    /\ reader' = [reader EXCEPT ![r].step = IF @ = "wake" THEN "futex wake" ELSE "left futex wake"]
    /\ park' = [park EXCEPT ![TheWriter] = 0]
    /\ UNCHANGED <<writer, members, published, cursor, counted>>
WakeWriter(r) ==
    /\ reader[r].step \in {"futex wake", "left futex wake"}
    /\ reader' = [reader EXCEPT ![r].step = IF @ = "futex wake" THEN "idle" ELSE "gone"]
    /\ writer' = IF writer.step = "asleep" THEN Go("reserve") ELSE writer
    /\ UNCHANGED <<members, published, park, cursor, counted>>

MayShutDown(r) == reader[r].step \notin Dead \union {"joining", "gone", "writer died"}
Shutdown(r) ==
    /\ MayShutDown(r) /\ reader[r].shut = 0
    /\ reader' = [reader EXCEPT ![r].closed = TRUE, ![r].shut = 1] /\ ReaderOnly
ShutdownUnpark(r) ==
    /\ MayShutDown(r) /\ reader[r].shut = 1
    /\ reader' = [reader EXCEPT ![r].shut = 2] /\ park' = [park EXCEPT ![r] = 0]
    /\ UNCHANGED <<writer, members, published, cursor, counted>>
ShutdownWake(r) ==
    /\ MayShutDown(r) /\ reader[r].shut = 2
    /\ reader' = [FutexWake(r) EXCEPT ![r].shut = 3] /\ ReaderOnly
Leave(r) ==
    /\ reader[r].closed /\ reader[r].step \in {"end", "idle"} /\ reader[r].buf = <<>>
    /\ reader' = [reader EXCEPT ![r].step = "left wake", ![r].pos = 0] /\ ReaderOnly

FlushReader(r) ==
    /\ reader[r].buf # <<>> /\ reader' = [reader EXCEPT ![r].buf = Tail(@)]
    /\ LET store == Head(reader[r].buf) IN
       IF store[1] = "park word"
       THEN park' = [park EXCEPT ![r] = store[2]] /\ UNCHANGED cursor
       ELSE cursor' = [cursor EXCEPT ![r] = store[2]] /\ UNCHANGED park
    /\ UNCHANGED <<writer, members, published, counted>>
ReaderDeath(r) ==
    /\ reader[r].step \notin Dead \union {"joining", "gone"}
    /\ park' = [park EXCEPT ![r] = Last(reader[r].buf, "park word", @)]
    /\ cursor' = IF r \in counted THEN [cursor EXCEPT ![r] = Last(reader[r].buf, "cursor", @)] ELSE cursor
    /\ LET owesWake == WithSlices /\ reader[r].step \in {"futex wake", "left futex wake"}
       IN reader' = [reader EXCEPT ![r] = Fresh(IF owesWake THEN "dead waker" ELSE "dead", 0)]
    /\ UNCHANGED <<writer, members, published, counted>>
Join(r) ==
    /\ reader[r].step \in Dead /\ writer.step # "dead" /\ r \notin members /\ r \notin counted
    /\ reader' = [reader EXCEPT ![r].step = "joining"] /\ ReaderOnly

Next ==
    \/ CallEnqueue \/ Reserve \/ FindNoRoom \/ ParkWriter \/ FenceParkedWriter \/ RecheckRoom \/ SleepWriter
    \/ EndWriterSlice \/ UnparkWriter \/ Write \/ Publish \/ FencePublished
    \/ PassRunningReader \/ TakeReaderFlag \/ WakeReader \/ FlushWriter
    \/ WithSpurious /\ WakeWriterSpuriously
    \/ WithDeaths /\ WriterDeath
    \/ \E r \in Readers :
       \/ CallDequeue(r) \/ SeeRecord(r) \/ SeeNothing(r) \/ ParkReader(r) \/ FenceParkedReader(r)
       \/ RecheckRecord(r) \/ SleepReader(r) \/ EndReaderSlice(r) \/ UnparkReader(r)
       \/ Read(r) \/ Advance(r) \/ FenceCursor(r) \/ PassRunningWriter(r) \/ TakeWriterFlag(r) \/ WakeWriter(r)
       \/ FlushReader(r)
       \/ WithSpurious /\ WakeReaderSpuriously(r)
       \/ WithShutdown /\ (SeeClosed(r) \/ Shutdown(r) \/ ShutdownUnpark(r) \/ ShutdownWake(r))
       \/ WithShutdown /\ WithLeave /\ (Leave(r) \/ DropLeft(r))
       \/ WithDeaths /\ (LastLook(r) \/ ReaderDeath(r) \/ DropDead(r))
       \/ WithDeaths /\ WithRejoin /\ (Join(r) \/ Admit(r))

Spec == Init /\ [][Next]_vars

(* ---- which states are the same ---- *)

HasPosition(r) == reader[r].step \notin WithoutPosition
Positions ==
    {published, writer.pos}
    \union {writer.buf[i][2] : i \in {j \in DOMAIN writer.buf : writer.buf[j][1] = "published"}}
    \union {cursor[r] : r \in counted}
    \union UNION {{reader[r].pos} \union {reader[r].buf[i][2] : i \in {j \in DOMAIN reader[r].buf : reader[r].buf[j][1] = "cursor"}}
                  : r \in {r \in Readers : HasPosition(r)}}
Lowest == CHOOSE p \in Positions : \A q \in Positions : p <= q
Lowered(buffer) ==
    [i \in DOMAIN buffer |-> IF buffer[i][1] = "park word" THEN buffer[i] ELSE <<buffer[i][1], buffer[i][2] - Lowest>>]

View ==
    <<[writer EXCEPT !.pos = @ - Lowest, !.buf = Lowered(@)],
      [r \in Readers |-> IF HasPosition(r) THEN [reader[r] EXCEPT !.pos = @ - Lowest, !.buf = Lowered(@)] ELSE reader[r]],
      members, published - Lowest, park,
      [r \in Readers |-> IF r \in counted THEN cursor[r] - Lowest ELSE 0], counted>>

(* ---- what must hold ---- *)

WriterIsWaking == writer.step \in {"publish", "wake fence", "wake", "futex wake", "dead"} \/ writer.buf # <<>>
WillWakeWriter(r) ==
    \/ reader[r].buf # <<>>
    \/ reader[r].step \in {"cursor fence", "wake", "futex wake", "left wake", "left futex wake", "dead waker"}
    \/ reader[r].step = "dead" /\ r \in members

NoLostWakeup ==
    /\ \A r \in Readers : reader[r].step = "asleep" =>
       /\ Something(r) /\ ~reader[r].closed => WriterIsWaking
       /\ reader[r].closed => reader[r].shut # 3
    /\ writer.step = "asleep" =>
       \/ \E r \in members \intersect counted : writer.pos - cursor[r] >= Capacity /\ reader[r].step # "gone"
       \/ \E r \in Readers : WillWakeWriter(r)

NoOverwrite == \A r \in Readers : HasPosition(r) =>
    /\ writer.pos - reader[r].pos <= Capacity
    /\ reader[r].step = "read" /\ writer.step = "publish" => writer.pos - reader[r].pos < Capacity

NoLostRecord == \A r \in Readers : reader[r].step = "writer died" => ~Something(r) /\ writer.step = "dead"
=============================================================================
